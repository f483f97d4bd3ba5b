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
        entry(
            parallel.team(limit) if limit else 0, units, source.data_ptr(), read, target.data_ptr(), written
        )
        return target

    return probe


def _to_lines(nbytes: float) -> int:
    return round(nbytes / 64) * 64


@functools.cache
def peaks() -> Peaks:
    """The arithmetic peaks of all threads that torch uses, measured once per process."""
    from tileops.bench import _probe_kernels as kernels

    lanes, threads = jit.cpu_target().lanes, torch.get_num_threads()
    found = {}
    for dtype, flops_per_lane in (("float32", 2), ("bfloat16", 4)):
        short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        entry = jit.get_entry(Program.of(f"{_MODULE}:multiply_add", ["f32", "ptr"], dtype=short)).launch
        units = 16 * threads
        out = torch.empty(units, device="cpu")

        def run(entry: Callable[..., None] = entry, units: int = units, out: torch.Tensor = out) -> None:
            entry(threads, units, 0.5, out.data_ptr())

        (timing,) = measure([run], budget_s=0.3)
        work = units * kernels.CHAINS * kernels.STEPS * lanes * flops_per_lane
        found[dtype] = work / min(timing.samples)
    return Peaks(found)
