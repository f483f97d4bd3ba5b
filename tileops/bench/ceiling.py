"""What this machine can do, measured with our own kernels in the same run as the operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tileops import jit
from tileops.bench.timing import measure
from tileops.jit import parallel
from tileops.jit.program import Program
from tileops.ops.plans import allocator

_UNIT_BYTES = 8192
#: Units of an arithmetic probe for each thread.
_PEAK_UNITS = 16
_MODULE = "tileops.bench._probe_kernels"


@dataclass(frozen=True)
class Peaks:
    """Arithmetic peaks in flop/s, by dtype name; a dtype without an entry has float32's."""

    flops: dict[str, float]

    def of(self, dtype: str) -> float:
        """Peak for multiply-adds on inputs of `dtype`."""
        return self.flops.get(dtype, self.flops["float32"])


def memory_probe(read_bytes: int, written_bytes: int) -> Callable[[], torch.Tensor]:
    """A call that allocates an output, and reads and writes about as many bytes as given, in linear streams.

    Its time is what memory alone, in whatever cache these bytes live, costs an operator that does the same.
    """
    larger = max(read_bytes, written_bytes, 64)
    read, written = (_to_lines(_UNIT_BYTES * part / larger) for part in (read_bytes, written_bytes))
    units = max(1, round(larger / _UNIT_BYTES))
    source = torch.ones(max(units * read // 4, 16), device="cpu")
    entry = jit.get_entry(Program.of(f"{_MODULE}:stream", ["ptr", "i64", "ptr", "i64"])).launch
    limit = parallel.limit(units * (read + written) / 40.0)  # one thread moves about 40 bytes a nanosecond
    size = max(units * written // 4, 16)

    allocate = allocator(((size,), torch.float32), torch.device("cpu"))

    def probe() -> torch.Tensor:
        target = allocate()
        assert target is not None  # only an absent output has no tensor
        entry(parallel.team(limit) if limit else 0, units, source.data_ptr(), read, target.data_ptr(), written)
        return target

    return probe


def _to_lines(nbytes: float) -> int:
    return round(nbytes / 64) * 64


@functools.cache
def peaks() -> Peaks:
    """The arithmetic peaks of all threads that torch uses, measured once per process.

    bfloat16's is that of the fastest instruction that multiplies it: AMX tiles, dot products of pairs, or
    float32's.
    """
    from tileops.bench import _probe_kernels as kernels

    target = jit.cpu_target()
    vectors = kernels.CHAINS * kernels.STEPS * target.lanes
    single = _rate(_vector_probe("f32"), vectors * 2)
    half = max(single, _rate(_vector_probe("bf16"), vectors * 4))
    if target.has_amx:
        half = max(half, _rate(_matrix_probe(), 4 * kernels.STEPS * 2 * 16 * 16 * 32))
    return Peaks({"float32": single, "bfloat16": half})


Launch = Callable[[int, int], None]  # of a number of units on a number of threads


def _vector_probe(dtype: str) -> Launch:
    entry = jit.get_entry(Program.of(f"{_MODULE}:multiply_add", ["f32", "ptr"], dtype=dtype)).launch
    out = torch.empty(_PEAK_UNITS * torch.get_num_threads(), device="cpu")
    return lambda threads, units: entry(threads, units, 0.5, out.data_ptr())


def _matrix_probe() -> Launch:
    entry = jit.get_entry(Program.of(f"{_MODULE}:matrix_multiply_add", ["ptr", "ptr"])).launch
    data = torch.zeros(512, dtype=torch.bfloat16, device="cpu")
    out = torch.empty(_PEAK_UNITS * torch.get_num_threads(), 1024, device="cpu")
    return lambda threads, units: entry(threads, units, data.data_ptr(), out.data_ptr())


def _rate(launch: Launch, flops_per_unit: int) -> float:
    """flop/s on all threads."""
    threads = torch.get_num_threads()
    units = _PEAK_UNITS * threads
    (timing,) = measure([lambda: launch(threads, units)], budget_s=0.3)
    return units * flops_per_unit / min(timing.samples)
