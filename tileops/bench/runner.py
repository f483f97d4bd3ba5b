"""Compares an operator with its baselines on one case: checked first, then timed in turns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tileops.bench import ceiling
from tileops.bench.case import Case
from tileops.bench.timing import Timing, measure
from tileops.workloads import numerics, workload

DEFAULT_BUDGET_S = 20.0
#: A baseline whose normalized error exceeds this computes something else than the reference.
BASELINE_ERROR = 0.05


@dataclass(frozen=True)
class Implementation:
    """Something to time.

    Attributes:
        run: called with one set of inputs per call.
        args: sets of inputs that replace the case's, cycled through; for instance a packed weight.
        reset: called before each check and warm-up, to undo what `run` writes into its inputs.
        noncomparable_reason: why its result is not checked; None checks it.
    """

    run: Callable[..., Any]
    args: Sequence[tuple[Any, ...]] | None = None
    reset: Callable[[], None] | None = None
    noncomparable_reason: str | None = None


@dataclass(frozen=True)
class Result:
    """Timings of one case.

    Attributes:
        op, case, device, dtype: what was measured.
        ours: our timing.
        baselines: timing of each baseline by name.
        flops, bytes: of the call, by the manifest.
        limit_us: microseconds that the machine's limits allow: the memory probe of the same reads and writes
            in the same rounds, or flops over the arithmetic peak, whichever is longer; NaN off the CPU.
        notes: by name of a group which formulation was the fastest; by name of a baseline why it is missing.
    """

    op: str
    case: str
    device: str
    dtype: str
    ours: Timing
    baselines: dict[str, Timing]
    flops: int
    bytes: int
    limit_us: float
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float]:
        """How many times longer each baseline takes."""
        return {name: timing.median / self.ours.median for name, timing in self.baselines.items()}

    @property
    def efficiency(self) -> float:
        """Fraction of the machine's limit; above 1 where a probe is no limit (tiny calls, caches)."""
        return self.limit_us / self.ours.microseconds

    def to_json(self) -> dict[str, Any]:
        """One row of the JSON report; the efficiency is None where no limit was measured, as on a GPU."""
        return {
            "op": self.op,
            "case": self.case,
            "device": self.device,
            "dtype": self.dtype,
            "ours_us": self.ours.microseconds,
            "baselines": {name: timing.microseconds for name, timing in self.baselines.items()},
            "ratio": self.ratios,
            "flops": self.flops,
            "bytes": self.bytes,
            "efficiency": None if math.isnan(self.efficiency) else self.efficiency,
        }


class WrongResultError(AssertionError):
    """An implementation does not compute what the reference computes; nothing was timed."""


class Runner:
    """Runs one case of one operator against other implementations.

    Args:
        op: the operator's class, or an instance that fits the case.
        case: the case, from `cases`.
        device: where to run; by default the CPU.
        target: whose kernels serve the op when `op` is a class.
        budget_s: seconds for timing.
    """

    def __init__(
        self,
        op: Any,
        case: Case,
        *,
        device: str = "cpu",
        target: str | None = None,
        budget_s: float = DEFAULT_BUDGET_S,
    ) -> None:
        self.op = op(**case.params, target=target) if isinstance(op, type) else op
        self.case = case
        self.device = device
        self.budget_s = budget_s
        self._workload = workload(case.op)
        self._inputs = case.input_sets(device, cold=self._workload.cold)
        written = [place for place, name in enumerate(case.call.forward_order) if name in case.call.branch.written]
        #: Each input that the call writes, with a copy of what it held.
        self._written = [
            (tensor, tensor.clone())
            for tensor in {id(tensors[place]): tensors[place] for tensors in self._inputs for place in written}.values()
            if tensor is not None
        ]

    @property
    def inputs(self) -> tuple[torch.Tensor | None, ...]:
        """The first set of inputs, in forward order."""
        return self._inputs[0]

    @property
    def input_sets(self) -> Sequence[tuple[torch.Tensor | None, ...]]:
        """Every set of inputs that calls cycle through."""
        return self._inputs

    def compare(
        self,
        baselines: Mapping[str, Callable[..., Any] | Implementation],
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> Result:
        """Checks the op and every baseline against the reference, then times them in turns.

        Inputs that the call writes, as one that works in place, are restored before each check and between samples,
        so that every implementation meets the same values.

        Args:
            baselines: by name; a plain callable is called with the case's tensors.
            groups: baselines that stand for one: ``{"torch": ["F.rms_norm", "manual"]}`` reports the fastest
                of them under the name of the group.

        Raises:
            WrongResultError: a result left the reference.
        """
        entries = {"ours": Implementation(self.op)}
        for name, item in baselines.items():
            entries[name] = item if isinstance(item, Implementation) else Implementation(item)
        notes = self._check(entries)
        flops, nbytes = self.op.eval_roofline()
        read, written = self._traffic(nbytes)
        calls = [self._cycled(item, index / len(entries)) for index, item in enumerate(entries.values())]
        on_cpu = self.device == "cpu"
        if on_cpu:
            calls.append(ceiling.memory_probe(read, written))
        restore = self._restore if self._written else None
        timings = measure(calls, budget_s=self.budget_s, synchronize=_synchronizer(self.device), restore=restore)
        limit = timings.pop().microseconds if on_cpu else float("nan")
        if on_cpu:
            limit = max(limit, flops / ceiling.peaks().of(self.case.dtype) * 1e6)
        by_name = dict(zip(entries, timings, strict=True))
        ours = by_name.pop("ours")
        for group, names in (groups or {}).items():
            members = {name: by_name.pop(name) for name in names if name in by_name}
            if members:
                notes[group] = min(members, key=lambda name: members[name].median)
                by_name[group] = members[notes[group]]
        return Result(
            op=self.case.op,
            case=self.case.id,
            device=self.device,
            dtype=self.case.dtype,
            ours=ours,
            baselines=by_name,
            flops=flops,
            bytes=nbytes,
            limit_us=limit,
            notes=notes,
        )

    def _restore(self) -> None:
        """Gives the inputs that the call writes the values they had."""
        for tensor, held in self._written:
            tensor.copy_(held)

    def _check(self, entries: dict[str, Implementation]) -> dict[str, str]:
        """Compares every result with the reference. Baselines that do not apply to the case are taken out of
        `entries`; returns why, by name.
        """
        expected = _outputs(self._workload.reference(*self.inputs, **self.case.params))
        inapplicable: dict[str, str] = {}
        for name, item in list(entries.items()):
            if item.noncomparable_reason is not None:
                continue
            self._restore()
            if item.reset is not None:
                item.reset()
            try:
                got = _outputs(item.run(*(item.args[0] if item.args is not None else self.inputs)))
            except NotImplementedError as error:
                if name == "ours":
                    raise
                inapplicable[name] = str(error)
                del entries[name]
                continue
            for position, (actual, want) in enumerate(zip(got, expected, strict=True)):
                if want is None:
                    continue
                if name == "ours":
                    mismatch = numerics.compare(actual, want, atol=_atol(actual, want))
                    if mismatch is not None:
                        raise WrongResultError(f"{self.case}: output {position}: {mismatch}")
                else:
                    distance = numerics.normalized_error(actual, want)
                    if not distance < BASELINE_ERROR:
                        raise WrongResultError(f"{self.case}: baseline {name}: normalized error {distance:.3g}")
        return inapplicable

    def _cycled(self, item: Implementation, start: float) -> Callable[[], Any]:
        """A call that cycles through sets of inputs, from the one at the fraction `start` of them on.

        Were all to start at the same one, each would find in the cache what the one before it had just read.
        """
        if item.reset is not None:
            item.reset()
        sets = item.args if item.args is not None else self._inputs
        run = item.run
        if len(sets) == 1:
            (args,) = sets
            return lambda: run(*args)
        first = int(len(sets) * start)
        cycle = itertools.cycle([*sets[first:], *sets[:first]])
        return lambda: run(*next(cycle))

    def _traffic(self, nbytes: int) -> tuple[int, int]:
        """Bytes read and written; outputs are written, everything else of the roofline's bytes is read."""
        outputs = _outputs(self.op(*self.inputs))
        written = sum(item.numel() * item.element_size() for item in outputs if item is not None)
        return max(nbytes - written, 0), written


def _atol(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The dtype's tolerance, in proportion to results larger than one: long sums of real sizes have an error
    that grows with them, also in elements that happen to be small.
    """
    size = float(expected.double().square().mean().sqrt()) if expected.numel() else 1.0
    return numerics.tolerance(actual.dtype) * max(1.0, size)


def _outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _synchronizer(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    return lambda: torch.get_device_module(device).synchronize()
