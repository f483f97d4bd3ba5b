"""Compile, store, load and launch kernels, for CPU and CUDA; knows no operator.

    entry = jit.get_entry(program)             memory -> stores -> compile, publish, load
    entry.launch(threads, n, *args)            CPU
    entry.launch(grid, *args)                  CUDA

`Program` says what is compiled; `tileops.jit.lang` is what kernel bodies are written in.
"""

from __future__ import annotations

from typing import Any

from tileops.jit.artifact import Artifact, ArtifactKey
from tileops.jit.cpu import direct, parallel
from tileops.jit.cpu.target import CpuTarget, cpu_target
from tileops.jit.engine import (
    CompileEvent,
    Entry,
    Stats,
    compile_program,
    default_target,
    get_entry,
    load,
    on_compile,
    reset,
    stats,
    stats_by_label,
    warm,
)
from tileops.jit.program import Program


def cuda_target(arch: str | None = None) -> Any:
    """The CUDA target of an architecture such as ``"sm_90a"`` (no GPU is needed), or of the current GPU."""
    from tileops.jit import cuda

    return cuda.cuda_target(arch)


__all__ = [
    "Artifact",
    "ArtifactKey",
    "CompileEvent",
    "CpuTarget",
    "Entry",
    "Program",
    "Stats",
    "compile_program",
    "cpu_target",
    "cuda_target",
    "default_target",
    "direct",
    "get_entry",
    "load",
    "on_compile",
    "parallel",
    "reset",
    "stats",
    "stats_by_label",
    "warm",
]
