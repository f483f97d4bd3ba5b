"""What is compiled, as plain values: it can be hashed, sent to a worker process and named in a cache."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Scalar = str | int | bool | float | None
Value = Scalar | tuple["Value", ...]
"""A configuration value: a scalar or a (nested) tuple of scalars."""

ARGUMENT_KINDS = ("ptr", "i64", "f32", "f64")


@dataclass(frozen=True)
class Program:
    """One function to compile, described by the factory that makes it and the values that are compiled in.

    ``factory(**config)`` returns the Python function. For the CPU it is ``body(begin, end, tid, *args)``, a
    serial loop over the units ``[begin, end)`` where `tid` numbers the thread (to choose scratch memory); for
    CUDA it is ``kernel(*args)``.

    Attributes:
        factory: ``"package.module:function"``; the module is imported only when something is compiled.
        config: the values compiled in, sorted by name.
        args: kinds of the arguments that follow the fixed ones: ``"ptr"``, ``"i64"``, ``"f32"`` or ``"f64"``.
        device: ``"cpu"`` or ``"cuda"``.
        block: threads per block (CUDA).
        dynamic_smem: bytes of dynamic shared memory (CUDA).
        grain: points where the units are split between threads are multiples of this (CPU).
    """

    factory: str
    config: tuple[tuple[str, Value], ...] = field(compare=False)
    args: tuple[str, ...]
    device: Literal["cpu", "cuda"] = "cpu"
    block: int = 0
    dynamic_smem: int = 0
    grain: int = 1
    # Compared in place of `config`: True, 1 and 1.0 are equal, but other code, and other keys on disk.
    _config_text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        module, colon, function = self.factory.partition(":")
        if not (module and colon and function):
            raise ValueError(f"factory={self.factory!r}: expected 'package.module:function'")
        unknown = [kind for kind in self.args if kind not in ARGUMENT_KINDS]
        if unknown:
            raise ValueError(f"{self.factory}: argument kinds {unknown}: expected {', '.join(ARGUMENT_KINDS)}")
        if self.grain < 1:
            raise ValueError(f"{self.factory}: grain={self.grain}: expected 1 or more")
        names = [name for name, _ in self.config]
        if names != sorted(set(names)):
            raise ValueError(f"{self.factory}: config names {names} must be sorted and distinct; use Program.of")
        for name, value in self.config:
            _check_value(self.factory, name, value)
        object.__setattr__(self, "_config_text", repr(self.config))

    @classmethod
    def of(
        cls,
        factory: str,
        args: Sequence[str],
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        block: int = 0,
        dynamic_smem: int = 0,
        grain: int = 1,
        **config: Value,
    ) -> Program:
        """The program of `factory` with `config` compiled in (sorted here)."""
        # Every call of a new kind makes its programs anew, and almost always the same few. The text tells True
        # from 1 and 1 from 1.0, which are equal as keys.
        key = (factory, *args, device, block, dynamic_smem, grain, repr(config))
        found = _known.get(key)
        if found is None:
            found = cls(factory, tuple(sorted(config.items())), tuple(args), device, block, dynamic_smem, grain)
            if len(_known) >= _KNOWN_LIMIT:
                _known.clear()
            _known[key] = found
        return found

    @property
    def source(self) -> str:
        """The module that defines the factory."""
        return self.factory.partition(":")[0]

    @property
    def name(self) -> str:
        """A short name for messages: the factory's function."""
        return self.factory.partition(":")[2]

    def make(self) -> Callable[..., Any]:
        """Imports the factory and calls it: the Python function to compile."""
        module, _, name = self.factory.partition(":")
        factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return factory(**dict(self.config))

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.config)
        return f"{self.factory}({values})"


_KNOWN_LIMIT = 4096
_known: dict[tuple[Any, ...], Program] = {}


def _check_value(factory: str, name: str, value: Any) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_value(factory, name, item)
    elif value is not None and type(value) not in (str, int, bool, float):
        raise TypeError(
            f"{factory}: config {name}={value!r} of type {type(value).__name__}: expected str, int, bool, "
            "float, None or a tuple of these"
        )
