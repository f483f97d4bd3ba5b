"""`tileops doctor`: what is installed, what was chosen, what is wrong."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tileops import __version__, settings
from tileops.cli.console import JsonFlag, print_json, size, table

_PACKAGES = ("torch", "numba", "llvmlite", "numba-cuda", "cuda-core", "optuna", "diskcache")


def command(as_json: JsonFlag = False) -> None:
    """Show versions, the device and CPU that kernels are compiled for, cache, launcher, packs and
    settings."""
    facts = collect()
    if as_json:
        print_json(facts)
        return
    for title, section in facts.items():
        table(title, "", rows=[(f"  {name}", _text(name, value)) for name, value in section.items()])


def collect() -> dict[str, dict[str, Any]]:
    """Everything the doctor knows, by section, as plain values."""
    from tileops import jit
    from tileops.jit.store import default_store
    from tileops.ops.gemm.pack import packs

    cache = default_store().info()
    cpu: dict[str, Any] = {"setting": settings.current().cpu, "model": _cpu_model()}
    try:
        target = jit.cpu_target()
        cpu |= {"target": str(target), "lanes": target.lanes, "features": " ".join(sorted(target.enabled))}
    except settings.SettingsError as error:
        cpu["problem"] = str(error)
    held = list(packs())
    return {
        "versions": {"tileops": __version__, "python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
        "cpu": cpu,
        "cuda": _cuda(),
        "launcher": {**dict(jit.parallel.describe()), "small calls": jit.direct.describe()},
        "cache": {
            "directory": cache["directory"],
            "state": cache["state"],
            "kernels": cache["entries"],
            "bytes": cache["bytes"],
            "limit": cache["size_limit"],
        },
        "packs": {"held": len(held), "bytes": sum(pack.nbytes for pack in held)},
        "settings": {variable: value for variable, value, _ in settings.current().describe()},
    }


def _cuda() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"device": None, "reason": "torch sees no CUDA device"}
    return {"device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability())}


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("bytes", "limit", "TILEOPS_CACHE_SIZE"):
        return size(value)
    return str(value)
