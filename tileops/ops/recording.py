"""``TILEOPS_RECORD``: every distinct call of a process, as JSON lines, for `tileops warm` and for bug
reports.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from tileops import settings
from tileops.kernels.base import TensorSpec
from tileops.ops.facts import CallFacts

if TYPE_CHECKING:
    from tileops.ops.base import Op

_log = logging.getLogger("tileops.ops")
_written: set[str] = set()


def record(op: Op, facts: CallFacts) -> None:
    """Appends a call to the file that the setting names, once per process; does nothing without the
    setting.
    """
    path = settings.current().record
    if path is None:
        return
    line = json.dumps(
        {
            "op": type(op).__name__,
            "call": json.loads(op._call),
            "tensors": {name: _describe(spec) for name, spec in facts.tensors.items()},
        },
        sort_keys=True,
    )
    if line in _written:
        return
    _written.add(line)
    try:
        # One write to a file opened for appending: lines of several processes never mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("TILEOPS_RECORD=%s: the call is not recorded: %s", path, error)


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
