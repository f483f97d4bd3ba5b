"""What is tuned, in plain values: a kernel class, the facts of one call, and how to make its tensors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from tileops import settings
from tileops.autotune.space import Config, TileSpace, power_of_two
from tileops.errors import TuningError
from tileops.jit.artifact import ArtifactKey, canonical_json

Outcome = Literal["ok", "invalid", "compile_failed", "crashed", "timeout", "wrong", "oom"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "invalid", "compile_failed", "crashed", "timeout", "wrong", "oom")


@dataclass(frozen=True)
class Problem:
    """Everything that a worker process needs to run a kernel on one call.

    Attributes:
        kernel: ``"package.module:Class"`` of the kernel class.
        call: its call spec, a frozen dataclass.
        default: the config whose outputs every other config's are compared with.
        tensors: names of the call spec's tensors in launch order; one that the call lacks is passed as None.
        outputs: the tensors that a launch writes without reading.
        updated: the tensors that it reads and writes.
        values: contents of integer tensors (row-major bytes by name); without them these are zero.
        seed: of the random contents of the other tensors.
    """

    kernel: str
    call: Any
    default: tuple[tuple[str, Any], ...]
    tensors: tuple[str, ...]
    outputs: tuple[str, ...]
    updated: tuple[str, ...] = ()
    values: tuple[tuple[str, bytes], ...] = ()
    seed: int = 0

    @classmethod
    def of(
        cls,
        kernel: type[Any],
        call: Any,
        *,
        outputs: Sequence[str] | None = None,
        updated: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Problem:
        """The problem of one call.

        Args:
            kernel: a kernel class with `tensors` (from its interface), `default_config`, `programs` and
                `bind`.
            call: its call spec.
            outputs: what a launch writes; by default the kernel's `outputs`, else the last tensor of the
                interface.
            updated: what it reads and writes.
            values: integer tensors whose contents matter (positions, indices), by name; they are copied.
            seed: of the random contents.

        Raises:
            TuningError: a worker process could not import the kernel class.
        """
        if kernel.__module__ == "__main__" or "<locals>" in kernel.__qualname__:
            raise TuningError(
                f"{kernel.__qualname__} is defined in {kernel.__module__}, where a measuring process cannot "
                "find it; move the class to the top level of an importable module"
            )
        written = tuple(outputs if outputs is not None else getattr(kernel, "outputs", kernel.tensors[-1:]))
        return cls(
            kernel=kernel_name(kernel),
            call=call,
            default=tuple(sorted(kernel.default_config(call).items())),
            tensors=tuple(kernel.tensors),
            outputs=tuple(name for name in written if name not in updated),
            updated=tuple(updated),
            values=tuple((name, _bytes(tensor)) for name, tensor in sorted((values or {}).items())),
            seed=seed,
        )


def _bytes(tensor: Any) -> bytes:
    array = tensor.detach().cpu().contiguous().numpy() if hasattr(tensor, "detach") else tensor
    return array.tobytes()


def config_text(config: Config) -> str:
    """A config as text that is equal for equal configs, whatever the order of the names."""
    return canonical_json(dict(config))


def kernel_name(kernel: type[Any]) -> str:
    """What records call a kernel."""
    return f"{kernel.__module__}:{kernel.__qualname__}"


def problem_class(kernel: type[Any], call: Any) -> Hashable:
    """All that `record_key` reads of a call besides its programs, in a form that is cheap to make: calls of a kernel
    that agree in both share a record.
    """
    space: TileSpace = kernel.tile_space
    specs = [getattr(call, name) for name in kernel.tensors]
    sizes: Hashable
    if space.bucket:
        sizes = tuple(space.bucket(call).items())
    else:
        sizes = tuple([None if x is None else (*map(power_of_two, x.shape[:-1]), *x.shape[-1:]) for x in specs])
    return (
        call.device,
        settings.current().cpu,
        tuple([None if spec is None else (spec.dtype, _layout(spec)) for spec in specs]),
        tuple(_options(kernel, call).items()),
        sizes,
    )


def record_key(kernel: type[Any], call: Any) -> ArtifactKey:
    """The key of the tuning record that `call` shares with the other calls of its bucket.

    Sources and versions are not part of it: a record outlives an update of this package, and shows what it
    came from.
    """
    space: TileSpace = kernel.tile_space
    programs = kernel.programs(call, kernel.default_config(call))
    return ArtifactKey(
        {
            "kernel": kernel_name(kernel),
            "interface": type(call).__name__,
            "device": device_name(call),
            "parameters": space.names,
            "programs": {
                name: {
                    "factory": program.factory,
                    "config": {key: value for key, value in program.config if key not in space.parameters},
                }
                for name, program in programs.items()
            },
            "tensors": {
                name: None if spec is None else {"dtype": spec.dtype, "layout": _layout(spec)}
                for name, spec in _tensors(kernel, call).items()
            },
            "options": _options(kernel, call),
            "problem": dict(space.bucket(call)) if space.bucket else _shapes(kernel, call),
        }
    )


def _tensors(kernel: type[Any], call: Any) -> dict[str, Any]:
    return {name: getattr(call, name) for name in kernel.tensors}


def _shapes(kernel: type[Any], call: Any) -> dict[str, Any]:
    return {
        name: [power_of_two(extent) for extent in spec.shape[:-1]] + list(spec.shape[-1:])
        for name, spec in _tensors(kernel, call).items()
        if spec is not None
    }


def _options(kernel: type[Any], call: Any) -> dict[str, Any]:
    """The parameters that choose what is computed; float parameters (eps, scale) only scale it."""
    return {
        name: value
        for name in _field_names(call.__class__)
        if name not in kernel.tensors and isinstance(value := getattr(call, name), bool | int | str | None)
    }


@cache
def _field_names(call: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(call))


def _layout(spec: Any) -> str:
    if spec.is_contiguous:
        return "contiguous"
    return "rows" if spec.strides and spec.strides[-1] == 1 else "strided"


def device_name(call: Any) -> str:
    """The device of `call` as far as timings depend on it: CPU model and instruction set, or GPU name and
    SM count.
    """
    device: Any = getattr(call, "device", None)
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        name = torch.cuda.get_device_name(device.index) if torch.cuda.is_available() else device.arch
        return f"{name}, {device.sm_count} SMs"
    return f"{_cpu_model()}, {settings.current().cpu}"


@cache
def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as facts:
            for line in facts:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux; the generic name below serves
    import platform

    return platform.processor() or platform.machine()
