"""The key of a compiled kernel: everything that its bytes depend on.

That is the program (factory, config, argument kinds, launch shape), the target (CPU name and features, or
compute capability), the sources (of the compiler layer, of the in-tree kernels, and of the package that
defines the factory) and the versions of the compilers. Versions come from package metadata, so naming a
kernel imports no compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tileops.errors import KernelCompileError
from tileops.jit.artifact import ArtifactKey

if TYPE_CHECKING:
    from tileops.jit.program import Program

#: Changes when the meaning of a key field or of an artifact part changes.
SCHEMA = 1

_COMPILERS = {
    "cpu": ("numba", "llvmlite"),
    "cuda": ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink"),
}
_extra_sources: dict[str, set[Path]] = {}


class Target(Protocol):
    """What a kernel is compiled for."""

    def describe(self) -> Mapping[str, Any]:
        """Plain values that identify the target: CPU name and features, or compute capability."""
        ...


def key_for(program: Program, target: Target) -> ArtifactKey:
    """The key of `program` compiled for `target`; equal across processes, hash seeds and working directories.

    Raises:
        KernelCompileError: the package that defines the factory cannot be found.
    """
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "factory": program.factory,
        "config": dict(program.config),
        "args": program.args,
        "device": program.device,
        "target": target.describe(),
        "sources": source_fingerprint(program.factory.partition(":")[0].partition(".")[0]),
        "versions": compiler_versions(program.device),
    }
    if program.device == "cuda":
        fields["block"] = program.block
        fields["dynamic_smem"] = program.dynamic_smem
    else:
        fields["grain"] = program.grain
        fields["python"] = sysconfig.get_config_var("SOABI")  # the wrapper calls the interpreter's C API
    return ArtifactKey(fields)


def stale_reason(fields: Mapping[str, Any]) -> str | None:
    """Why no process of this installation will ask for the kernel of a key again, or None.

    Says nothing about the target: a store may serve machines of several kinds.
    """
    if fields.get("schema") != SCHEMA:
        return "made by another version of tileops"
    device, package = fields["device"], fields["factory"].partition(":")[0].partition(".")[0]
    installed = compiler_versions(device)
    for name, version in fields["versions"].items():
        if installed.get(name) != version:
            return f"compiled with {name} {version}, installed is {installed.get(name)}"
    if device == "cpu" and fields["python"] != sysconfig.get_config_var("SOABI"):
        return f"compiled for Python {fields['python']}"
    try:
        return None if fields["sources"] == source_fingerprint(package) else "its sources have changed"
    except KernelCompileError:
        return f"the package {package} is not installed"


@cache
def compiler_versions(device: str) -> Mapping[str, str | None]:
    """Versions of the distributions that turn a program into code for `device`; None where one is not
    installed.
    """
    versions: dict[str, str | None] = {}
    for name in _COMPILERS[device]:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def add_sources(package: str, *paths: str | os.PathLike[str]) -> None:
    """Names further files or directories that the kernels of a package depend on (a generated table,
    another package).

    Args:
        package: top-level package of the kernels.
        paths: files, or directories whose Python files count.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found = [Path(path).resolve(strict=True) for path in paths]
    _extra_sources.setdefault(package, set()).update(found)
    source_fingerprint.cache_clear()


@cache
def source_fingerprint(package: str) -> str:
    """SHA-256 over relative path and contents of every source file that kernels of `package` are made from.

    Covers `tileops.jit` and `tileops.kernels`, for kernels of another package that whole package too, and
    what `add_sources` named. Read once per process, on first use: a process keeps compiling what it has
    imported.

    Raises:
        KernelCompileError: `package` cannot be found.
    """
    digest = hashlib.sha256()
    for label, path in _source_files(package):
        with open(path, "rb", buffering=0) as file:  # more than a hundred: every first call of a process waits for them
            content = file.read()
        digest.update(f"{label}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _source_files(package: str) -> Iterator[tuple[str, str | Path]]:
    root = Path(__file__).parent.parent
    for part in ("jit", "kernels"):
        yield from _python_files(f"tileops/{part}", root / part)
    if package != "tileops":
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise KernelCompileError(
                f"the package {package!r}, which defines a kernel, cannot be found; install it or put it on PYTHONPATH"
            )
        if spec.submodule_search_locations:
            for place in sorted(spec.submodule_search_locations):
                yield from _python_files(package, Path(place))
        elif spec.origin is not None and os.path.exists(spec.origin):
            # A module outside any package may import the modules beside it, so these count as well.
            for path in sorted(Path(spec.origin).parent.glob("*.py")):
                yield f"{package}/{path.name}", path
    for extra in sorted(_extra_sources.get(package, ())):
        if extra.is_dir():
            yield from _python_files(f"extra/{extra.name}", extra)
        else:
            yield f"extra/{extra.name}", extra


def _python_files(label: str, root: Path) -> Iterator[tuple[str, str]]:
    start, found = os.fspath(root), []
    for directory, subdirectories, names in os.walk(start):
        subdirectories[:] = [name for name in subdirectories if name.isidentifier() and name != "__pycache__"]
        below = directory[len(start) :].replace(os.sep, "/")
        found += [f"{below}/{name}" for name in names if name.endswith(".py")]
    for path in sorted(found):
        yield label + path, start + path
