"""The distinct calls of an application as JSON lines, for `tileops warm --calls` and for bug reports.

    TILEOPS_RECORD=calls.jsonl python serve.py          # or: with tileops.record("calls.jsonl"): ...

A line holds an op's construction and the facts of its tensors, never their contents:

    {"call": {"params": {"eps": 1e-05}, "target": null}, "op": "RMSNormFwdOp", "packed": null, "tensors": {"x": {...}}}

A program that the application compiles outside any operator has a line too; see `tileops.jit.recording`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tileops import settings
from tileops.errors import TileOpsError
from tileops.jit import recording
from tileops.jit.program import Program
from tileops.kernels.base import DTYPES, TensorSpec
from tileops.ops.facts import CallFacts

if TYPE_CHECKING:
    from tileops.ops.base import Op

_T = TypeVar("_T")


@contextmanager
def record_calls(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Inside the block, every distinct call of this process is appended to the file at `path`.

    Calls that an op has seen before count as well, and so do programs that are asked of `tileops.jit` directly.
    Process-wide, like every setting: calls of other threads are recorded too.

    Args:
        path: a file of JSON lines; created where it does not exist.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> with tileops.record("calls.jsonl"):
        ...     model(tokens)
        >>> tileops.warm(calls="calls.jsonl")
    """
    from tileops.ops import base

    place = Path(path).absolute()
    with open(place, "ab"):
        pass  # now, rather than with a log line at the first call
    recording.forget(str(place))
    with settings.scope(record=str(place)):
        # A plan is not recorded when it is used again, so every op makes its plans anew (its kernels stay).
        for op in list(base._instances):
            with op._lock:
                op._reset_plans()
        yield place


def record(op: Op, facts: CallFacts) -> None:
    """Appends a call to the file that the setting names, once per process; does nothing without the
    setting.
    """
    path = settings.current().record
    if path is None:
        return
    recording.append(
        path,
        {
            "op": type(op).__name__,
            "call": json.loads(op._call),
            "packed": facts.packed,
            "tensors": {name: _describe(facts.tensors[name]) for name in (*op._input_names, *op._held)},
        },
    )


def _describe(spec: TensorSpec | None) -> dict[str, Any] | None:
    if spec is None:
        return None
    return {
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "strides": list(spec.strides),
        "device": spec.device,
        "alignment": spec.alignment,
    }


@dataclass(frozen=True)
class RecordedCall:
    """One line of a calls file.

    Attributes:
        place: file and line.
        op: name of the operator.
        construction: what `dispatch.decode` reads.
        packed: layout of a packed operand, or None.
        tensors: the inputs and the construction-time tensors by name; None for an absent one.
    """

    place: str
    op: str
    construction: str
    packed: str | None
    tensors: Mapping[str, TensorSpec | None]


def read_calls(path: str | os.PathLike[str]) -> list[RecordedCall]:
    """The distinct calls of a file that `record_calls` or ``TILEOPS_RECORD`` wrote, in their order.

    Raises:
        TileOpsError: the file cannot be read, or a line is not one that was recorded (the message names it).
    """
    return [call for call in _read(path, _parse) if call is not None]


def read_programs(path: str | os.PathLike[str]) -> list[tuple[str, Program]]:
    """The distinct programs that the application compiled outside any operator, each with its file and line.

    Raises:
        TileOpsError: as for `read_calls`.
    """
    return [found for found in _read(path, _parse_program) if found is not None]


def _read(path: str | os.PathLike[str], parse: Callable[[str, Mapping[str, Any]], _T]) -> list[_T]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TileOpsError(f"cannot read the calls of {path}: {error}. Record some with TILEOPS_RECORD") from error
    found: dict[str, _T] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line in found:
            continue
        place = f"{os.path.basename(path)}:{number}"
        try:
            found[line] = parse(place, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TileOpsError(
                f"{place}: not a recorded call ({type(error).__name__}: {error}); expected what TILEOPS_RECORD writes"
            ) from error
    return list(found.values())


def _parse(place: str, content: Mapping[str, Any]) -> RecordedCall | None:
    if "program" in content:
        return None
    construction = json.dumps(content["call"], sort_keys=True, separators=(",", ":"))
    tensors = {name: None if facts is None else _spec(facts) for name, facts in content["tensors"].items()}
    return RecordedCall(place, str(content["op"]), construction, content.get("packed"), tensors)


def _parse_program(place: str, content: Mapping[str, Any]) -> tuple[str, Program] | None:
    return (place, recording.parse(content["program"])) if "program" in content else None


def _spec(facts: Mapping[str, Any]) -> TensorSpec:
    shape, strides = tuple(map(int, facts["shape"])), tuple(map(int, facts["strides"]))
    if facts["dtype"] not in DTYPES or len(shape) != len(strides) or min((*shape, *strides, 0)) < 0:
        raise ValueError(f"no tensor has these facts: {dict(facts)}")
    return TensorSpec(str(facts["device"]), facts["dtype"], shape, strides, int(facts["alignment"]))
