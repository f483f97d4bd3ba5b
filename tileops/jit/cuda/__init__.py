"""CUDA: compile a `Program` to a cubin on any machine, load it on a GPU, launch it on torch's current stream.

Importing this package imports neither numba nor a CUDA library.
"""

from __future__ import annotations

from tileops.jit.cuda.compile import compile_program, compile_to_ptx
from tileops.jit.cuda.loader import CudaEntry, load
from tileops.jit.cuda.target import CudaTarget, cuda_target

__all__ = ["CudaEntry", "CudaTarget", "compile_program", "compile_to_ptx", "cuda_target", "load"]
