"""Settings read from the environment, in one typed object.

`current()` parses the environment once; `scope()` overrides settings for a block, as tests do.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from tileops.errors import SettingsError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of a size such as ``2GiB``, ``500MB``, ``1048576`` (units are powers of 1,024)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError("expected a size such as 2GiB or 500MB")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if math.isinf(size):
        raise ValueError("expected a size that some disk could have")
    return int(size)


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"expected one of {', '.join(values)}")
        return text

    return parse


def _cpu(text: str) -> str:
    # Which names there are is known where code is generated (`jit.cpu.target`).
    if re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", text) is None:
        raise ValueError("expected native, x86-64-v3, generic, or LLVM's name of a CPU, such as sapphirerapids")
    return text


def _path(text: str) -> str:
    try:
        Path(text).expanduser()
    except RuntimeError:  # ~user
        raise ValueError(f"the home directory that {text} names is not known") from None
    return text


def _paths(text: str) -> tuple[str, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def _text(text: str) -> str:
    return text


def _var(name: str, parse: Callable[[str], Any], default: Any, doc: str) -> Any:
    return field(default=default, metadata={"var": name, "parse": parse, "doc": doc})


@dataclass(frozen=True)
class Settings:
    """One field per environment variable; `describe()` lists them with their meaning."""

    cache_dir: str | None = _var(
        "TILEOPS_CACHE_DIR",
        _path,
        None,
        "Directory of compiled kernels and tuning records (default: the user's cache directory).",
    )
    cache_path: tuple[str, ...] = _var(
        "TILEOPS_CACHE_PATH",
        _paths,
        (),
        "Read-only bundle files, or directories of them, searched before the cache directory.",
    )
    cache_size: int = _var(
        "TILEOPS_CACHE_SIZE", parse_size, 2 << 30, "Size limit of the kernel cache, for example 2GiB."
    )
    cache_trust: Literal["private", "group"] = _var(
        "TILEOPS_CACHE_TRUST",
        _choice("private", "group"),
        "private",
        "'group' accepts a cache directory writable by one of our groups.",
    )
    jit: Literal["lazy", "forbid"] = _var(
        "TILEOPS_JIT",
        _choice("lazy", "forbid"),
        "lazy",
        "'forbid' raises ColdKernelError instead of compiling.",
    )
    cpu: str = _var(
        "TILEOPS_CPU",
        _cpu,
        "native",
        "Instruction set that CPU kernels are compiled for: native, x86-64-v3, generic, or LLVM's name of a CPU.",
    )
    launcher: str = _var(
        "TILEOPS_LAUNCHER",
        _choice("auto", "torch", "system", "serial"),
        "auto",
        "Parallel launcher: torch's OpenMP runtime, the system's libgomp, or none.",
    )
    record: str | None = _var(
        "TILEOPS_RECORD", _text, None, "File to which every distinct call is appended as a JSON line."
    )
    tune_storage: str | None = _var(
        "TILEOPS_TUNE_STORAGE",
        _text,
        None,
        "Optuna storage URL of tuning studies (default: a journal file in the cache).",
    )
    log: str | None = _var(
        "TILEOPS_LOG",
        _choice("debug", "info", "warning", "error"),
        None,
        "Log level of the 'tileops' logger, written to stderr.",
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Parses `environ`.

        Raises:
            SettingsError: a variable holds a value that cannot be used.
        """
        values = {}
        for item in fields(cls):
            text = environ.get(item.metadata["var"])
            if text is None or text == "":
                continue
            try:
                values[item.name] = item.metadata["parse"](text)
            except ValueError as error:
                raise SettingsError(f"{item.metadata['var']}={text!r}: {error}") from None
        return cls(**values)

    def to_environ(self) -> dict[str, str]:
        """The variables that give a child process these settings; empty where one has its default."""
        values = ((item, getattr(self, item.name)) for item in fields(self))
        return {
            item.metadata["var"]: ""
            if value == item.default
            else os.pathsep.join(value)
            if isinstance(value, tuple)
            else str(value)
            for item, value in values
        }

    def describe(self) -> list[tuple[str, Any, str]]:
        """`(variable, value, meaning)` of every setting."""
        return [(item.metadata["var"], getattr(self, item.name), item.metadata["doc"]) for item in fields(self)]


_current: Settings | None = None


def current() -> Settings:
    """The settings in force; parsed from the environment on first use."""
    global _current
    if _current is None:
        _current = Settings.from_environ(os.environ)
    return _current


def _checked(name: str, value: Any) -> Any:
    """A value for the setting `name`; text means what it means in the environment."""
    item = next((item for item in fields(Settings) if item.name == name), None)
    if item is None:
        raise SettingsError(f"{name}: no such setting; there are {', '.join(item.name for item in fields(Settings))}")
    if value == item.default or (isinstance(item.default, tuple | int) and type(value) is type(item.default)):
        return value
    if not isinstance(value, str):
        raise SettingsError(f"{name}={value!r}: expected {item.type}, or text as in {item.metadata['var']}")
    try:
        return item.metadata["parse"](value)
    except ValueError as error:
        raise SettingsError(f"{name}={value!r}: {error}") from None


@contextmanager
def scope(**overrides: Any) -> Iterator[Settings]:
    """Overrides settings inside a ``with`` block (process-wide, so not for concurrent threads).

    Raises:
        SettingsError: there is no such setting, or the value cannot be used.
    """
    global _current
    before = current()
    _current = replace(before, **{name: _checked(name, value) for name, value in overrides.items()})
    try:
        yield _current
    finally:
        _current = before
