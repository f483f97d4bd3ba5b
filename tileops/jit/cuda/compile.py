"""Program -> PTX (numba-cuda, NVVM) -> cubin (nvJitLink). Needs no GPU and no driver."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tileops.errors import KernelCompileError
from tileops.jit import _numba_cuda
from tileops.jit.artifact import Artifact
from tileops.jit.cuda.target import CudaTarget
from tileops.jit.program import Program

# NVVM is not thread-safe, and numba-cuda holds a lock of its own only around part of the work.
_lock = threading.Lock()


@dataclass(frozen=True)
class Resources:
    """What a kernel needs, as the assembler reports it.

    Attributes:
        registers: of a thread.
        spill_bytes: bytes of spill stores and loads.
        stack_bytes: bytes of a thread's stack frame.
        static_smem: bytes of static shared memory of a block.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_smem: int


def compile_program(program: Program, target: CudaTarget) -> Artifact:
    """Compiles `program` for `target`.

    Returns:
        An artifact with the part "cubin" and the facts that `loader.load` and people need: entry, block,
        dynamic_smem, args, registers, spill_bytes, stack_bytes, static_smem, seconds.

    Raises:
        KernelCompileError: the compilers are missing, or refuse the kernel; the message ends with their log.
    """
    start = time.perf_counter()
    artifact = assemble(compile_to_ptx(program, target), program, target)
    return Artifact(artifact.parts, {**artifact.facts, "seconds": round(time.perf_counter() - start, 4)})


def assemble(ptx: str, program: Program, target: CudaTarget) -> Artifact:
    """The artifact of PTX that `compile_to_ptx` made; it lacks the fact `seconds`.

    Raises:
        KernelCompileError: the assembler refuses it.
    """
    cubin, log = _link(ptx, target, program)
    resources = parse_resources(log)
    facts = {
        "entry": _entry_name(program),
        "arch": target.arch,
        "args": program.args,
        "block": program.block,
        "dynamic_smem": program.dynamic_smem,
        **vars(resources),
    }
    return Artifact({"cubin": cubin}, facts)


def compile_to_ptx(program: Program, target: CudaTarget) -> str:
    """The PTX that `compile_program` assembles: for tests and for reading.

    Raises:
        KernelCompileError: the compilers are missing or refuse the kernel.
    """
    if program.device != "cuda" or program.block < 32 or program.block % 32 or program.block > 1024:
        raise KernelCompileError(
            f"{program}: device={program.device!r}, block={program.block}: a CUDA block has 32 to 1024 "
            "threads, in whole warps"
        )
    with _lock:
        try:
            text = _numba_cuda.compile_ptx(program.make(), program.args, target.capability, program.block)
        except KernelCompileError:
            raise
        except Exception as error:  # numba, NVVM and the traced functions each raise their own
            raise KernelCompileError(f"{program} for {target.arch}: {type(error).__name__}: {error}") from error
    return _with_stable_names(text, _entry_name(program))


def _entry_name(program: Program) -> str:
    return f"tileops_{program.name}"


def _with_stable_names(ptx: str, entry: str) -> str:
    """The PTX with an entry name that does not depend on the process, and without Numba's environment
    pointer, so that equal programs give equal bytes.
    """
    match = re.search(r"\.entry\s+([\w$]+)", ptx)
    if match is None:
        raise KernelCompileError(f"{entry}: the compiled PTX has no entry")
    ptx = re.sub(r"^\.(?:common|visible|weak) \.global [^;]*_ZN08NumbaEnv[^;]*;\n", "", ptx, flags=re.MULTILINE)
    return ptx.replace(match[1], entry)


def _link(ptx: str, target: CudaTarget, program: Program) -> tuple[bytes, str]:
    from cuda.bindings import nvjitlink

    data = ptx.encode()
    options = [f"-arch={target.arch}", "-verbose", "-O3"]
    handle = nvjitlink.create(len(options), options)
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), f"{program.name}.ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = _log(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
            raise KernelCompileError(f"{program} for {target.arch}: nvJitLink: {error}\n{log}") from error
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    finally:
        nvjitlink.destroy(handle)


def _log(size_of: Callable[[int], int], read: Callable[[int, bytearray], None], handle: int) -> str:
    text = bytearray(size_of(handle))
    if text:
        read(handle, text)
    return text.rstrip(b"\0").decode(errors="replace")


def parse_resources(log: str) -> Resources:
    """Reads nvJitLink's verbose log of a module with one entry.

    Raises:
        KernelCompileError: the log does not say what a kernel needs.
    """
    used = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or frame is None:
        raise KernelCompileError(f"nvJitLink's log does not list registers and spills:\n{log}")
    shared = re.search(r"(\d+) bytes smem", log)
    return Resources(
        registers=int(used[1]),
        spill_bytes=int(frame[2]) + int(frame[3]),
        stack_bytes=int(frame[1]),
        static_smem=int(shared[1]) if shared else 0,
    )
