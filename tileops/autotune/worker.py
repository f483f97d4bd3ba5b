"""The process that runs candidates: ``python -m tileops.autotune.worker <file descriptor>``.

It answers one request at a time over a pipe and may die or hang at any of them; the process that tunes
notices, replaces it, and goes on. Every request names its config in full, so a fresh worker needs no
history.
"""

from __future__ import annotations

import importlib
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tileops.autotune.problem import Outcome, Problem, config_text
from tileops.errors import KernelCompileError
from tileops.jit.child import die_with_parent

Reply = tuple[Outcome, float, str]

_COLD_BYTES = 96 << 20  # operands larger than 1 MiB are cycled through this much memory, as weights of a model are
_TOLERANCE = {"float16": 1e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-10}


class Runner:
    """Compiles, checks and times the configs of one problem in this process."""

    def __init__(self, problem: Problem) -> None:
        module, _, name = problem.kernel.partition(":")
        kernel: Any = importlib.import_module(module)
        for part in name.split("."):
            kernel = getattr(kernel, part)
        self.kernel = kernel
        self._problem = problem
        self._launches: dict[str, Callable[..., None]] = {}
        self._sets: list[list[Any]] = []
        self._reference: dict[str, Any] | None = None

    def compile(self, config: dict[str, Any]) -> None:
        """Compiles what `config` needs and publishes it to the store of this tuning run."""
        from tileops import jit

        for program in self.kernel.programs(self._problem.call, config).values():
            jit.get_entry(program)

    def check(self, config: dict[str, Any]) -> Reply:
        """Runs `config` once on marked outputs, compares them with the default's, and times a second run."""
        if self._reference is None:
            self._reference = self._outputs_of(dict(self._problem.default))
        found = self._outputs_of(config)
        for name, expected in self._reference.items():
            difference = _difference(found[name], expected)
            if difference is not None:
                return "wrong", math.nan, f"{name}: {difference}"
        return "ok", self.time(config, 1), ""

    def time(self, config: dict[str, Any], repeats: int) -> float:
        """Seconds of one launch, averaged over `repeats`."""
        launch = self._launch(config)
        sets = self._tensor_sets()
        turns = [sets[i % len(sets)] for i in range(repeats)]
        if self._cuda:
            return self._time_cuda(launch, turns)
        start = time.perf_counter()
        for tensors in turns:
            launch(*tensors)
        return (time.perf_counter() - start) / repeats

    def _time_cuda(self, launch: Callable[..., None], turns: Sequence[Sequence[Any]]) -> float:
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for tensors in turns:
            launch(*tensors)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / len(turns)

    @property
    def _cuda(self) -> bool:
        return getattr(getattr(self._problem.call, "device", None), "type", "cpu") == "cuda"

    def _launch(self, config: dict[str, Any]) -> Callable[..., None]:
        text = config_text(config)
        if text not in self._launches:
            from tileops import jit

            programs = self.kernel.programs(self._problem.call, config)
            entries = {name: jit.get_entry(program) for name, program in programs.items()}
            self._launches[text] = self.kernel(config, entries).bind(self._problem.call)
        return self._launches[text]

    def _tensor_sets(self) -> list[list[Any]]:
        if not self._sets:
            self._sets.append(self._make_tensors(0))
            size = sum(tensor.numel() * tensor.element_size() for tensor in self._sets[0] if tensor is not None)
            # A set in cache flatters configs that reread memory; small tensors are in cache in real use as
            # well.
            copies = min(8, _COLD_BYTES // size) if size >= 1 << 20 else 1
            self._sets += [self._make_tensors(i) for i in range(1, copies)]
        return self._sets

    def _outputs_of(self, config: dict[str, Any]) -> dict[str, Any]:
        problem = self._problem
        launch = self._launch(config)
        tensors = dict(zip(problem.tensors, self._make_tensors(0), strict=True))
        for name in problem.outputs:
            _mark(tensors[name])
        launch(*tensors.values())
        if self._cuda:
            import torch

            torch.cuda.synchronize()
        return {name: tensors[name].clone() for name in (*problem.outputs, *problem.updated)}

    def _make_tensors(self, index: int) -> list[Any]:
        import torch

        generator = torch.Generator().manual_seed(self._problem.seed + index)
        values = dict(self._problem.values)
        made = []
        for name in self._problem.tensors:
            spec = getattr(self._problem.call, name)
            made.append(None if spec is None else _make_tensor(spec, values.get(name), generator))
        return made


def _make_tensor(spec: Any, contents: bytes | None, generator: Any) -> Any:
    """A tensor with the layout of `spec`; its address has the alignment of `spec`, not more."""
    import torch

    dtype = getattr(torch, spec.dtype)
    itemsize = torch.empty((), dtype=dtype).element_size()
    span = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
    if 0 in spec.shape:
        span = 0
    offset = spec.alignment // itemsize if itemsize <= spec.alignment < 16 and spec.device != "cpu" else 0
    storage = torch.empty(span + offset, dtype=dtype, device=spec.device)
    tensor = storage[offset:].as_strided(spec.shape, spec.strides, storage.storage_offset() + offset)
    if contents is not None:
        tensor.copy_(torch.frombuffer(bytearray(contents), dtype=dtype).reshape(spec.shape))
    elif dtype.is_floating_point:
        # One generated row block, repeated: filling hundreds of MiB with a generator would take seconds.
        block = torch.randn(min(span + offset, 1 << 20), generator=generator).to(dtype).to(spec.device)
        storage.copy_(block.repeat(-(-(span + offset) // max(block.numel(), 1)))[: span + offset])
    else:
        storage.zero_()
    return tensor


def _mark(tensor: Any) -> None:
    """Fills an output with values that no kernel computes, so that an element left unwritten shows."""
    import torch

    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(math.nan)
    elif tensor.dtype == torch.bool:
        tensor.view(torch.uint8).fill_(0xA5)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _difference(found: Any, expected: Any) -> str | None:
    """What is wrong with `found`, or None. Other tile sizes add in another order, so rounding may differ."""
    import torch

    if not expected.dtype.is_floating_point:
        return None if torch.equal(found, expected) else "differs from the default config's result"
    tolerance = _TOLERANCE.get(str(expected.dtype).removeprefix("torch."), 0.1)
    left, right = found.double(), expected.double()
    finite = right[right.isfinite()]
    scale = finite.pow(2).mean().sqrt().item() if finite.numel() else 0.0
    if torch.allclose(left, right, rtol=tolerance, atol=8 * tolerance * scale, equal_nan=True):
        return None
    if left.isnan().logical_and(right.isnan().logical_not()).any():
        return "elements were left unwritten, or are NaN where the default config gives a number"
    largest = (left - right).abs().nan_to_num().max().item()
    return f"differs from the default config's result by up to {largest:.3g}"


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome that an exception means, and its text in one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, MemoryError) or "alloc" in text.lower() or "out of memory" in text.lower():
        return "oom", text
    if isinstance(error, KernelCompileError):
        return "compile_failed", text
    return "crashed", text


def serve(connection: Connection) -> None:
    """Answers requests until the pipe closes."""
    runner: Runner | None = None
    while True:
        try:
            kind, *arguments = connection.recv()
        except EOFError:
            return
        reply: Reply = ("ok", math.nan, "")
        try:
            if kind == "problem":
                runner = Runner(*arguments)
            else:
                assert runner is not None, "the problem comes first"
                if kind == "compile":
                    runner.compile(*arguments)
                elif kind == "check":
                    reply = runner.check(*arguments)
                else:
                    reply = ("ok", runner.time(*arguments), "")
        except Exception as error:
            outcome, text = outcome_of(error)
            reply = (
                "compile_failed" if kind == "compile" and outcome == "crashed" else outcome,
                math.nan,
                text,
            )
        connection.send(reply)


def _limit_memory() -> None:
    """Lets an allocation beyond the machine's memory fail instead of taking the machine down."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = total if hard == resource.RLIM_INFINITY else min(total, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def main(argv: Sequence[str]) -> None:
    descriptor, threads, limited = int(argv[1]), int(argv[2]), argv[3] == "limited"
    die_with_parent()
    if limited:
        _limit_memory()
    import torch

    torch.set_num_threads(threads)
    connection = Connection(descriptor)
    connection.send("ready")
    with torch.inference_mode():
        serve(connection)


if __name__ == "__main__":
    main(sys.argv)
