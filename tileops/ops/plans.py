"""Plans: what a call of a known signature does, and how many of them an op keeps."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tileops.jit import direct
from tileops.kernels import pages
from tileops.kernels.base import contiguous_strides
from tileops.manifest.signature import OUT
from tileops.ops._torch_guards import tensor_check
from tileops.ops.facts import CallFacts

Run = Callable[..., Any]

empty_strided = torch.empty_strided

#: Weights whose plans an op finds at once.
_WEIGHTS = 4096
#: A plan alternating between states (grad mode, parameters and tensors) stops chasing them.
_RENEWALS = 16

#: shape and dtype of a new output; the position of the caller's tensor that it is; None where the call returns None
OutputSpec = tuple[tuple[int, ...], torch.dtype] | int | None


@dataclass(slots=True)
class CallRecord:
    """The facts of a call that completed; `eval_roofline()` and `op.dtype` read them. Never changed (not frozen: a new
    kind of call makes one, and freezing costs a microsecond).

    Attributes:
        checked: what the generated call check found out.
        dtype: dtype of the first tensor.
        device: the call device.
        facts: the plain facts, or None for a call on meta tensors.
    """

    checked: Any
    dtype: torch.dtype
    device: torch.device
    facts: CallFacts | None


def _never(*tensors: Any) -> bool:
    return False


#: See `Plan.latest`.
Check = tuple[Callable[..., bool], bool]
UNKNOWN: Check = _never, False


class Calls:
    """Calls of one kind, of which nothing is known.

    Attributes:
        alike: see `Plan.calls`.
    """

    __slots__ = ("alike",)

    def __init__(self) -> None:
        self.alike = UNKNOWN

    def look_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        """Has `alike` recognise calls that are like this one but for sizes and strides."""

    def run(self, key: Any) -> Run:
        """`Plan.run` of a plan that has a key."""
        raise NotImplementedError

    def record(self, key: Any) -> CallRecord:
        """`Plan.record` of a plan that has a key."""
        raise NotImplementedError


_NOTHING_KNOWN = Calls()


class Plan:
    """How to run a call whose signature is known.

    Attributes:
        run: ``run(*tensors)`` allocates the outputs, launches, and returns what the op returns. None before the second
            call of a plan whose first one had a run that is cheap to make (`again` makes it then).
        used: set by every call, cleared by `PlanCache` when it looks for something to drop.
        layout: layout of the packed operand that it was made for, or None.
        latest: what `fits` is, and whether one of the tensors that it is true of required a gradient (and grad mode was
            off). Read at once: another thread may renew the plan between two reads, and a call whose gradient is
            needed must not take the answer about others.
        settle: makes `run`, or None.
        twice: ``twice(*tensors)``: the same for calls that pass some tensor more than once, in the same places as an
            earlier call did (`fits` refuses all of them).
        renewals: how often `fits` may still be made anew for tensors that it refused; above the limit before the first
            call.
        calls: what is known of calls of its kind; their `alike` is like `latest`, for calls that differ from an earlier
            one in sizes and strides.
        key: the call signature, of a plan that `calls` can make again from it, so that it keeps nothing else: programs
            with growing sequences make many plans and use each once. Else None.
    """

    __slots__ = ("_record", "calls", "key", "latest", "layout", "renewals", "run", "settle", "twice", "used")

    def __init__(
        self,
        run: Run | None,
        record: CallRecord | None,
        layout: str | None = None,
        settle: Callable[[], Run] | None = None,
        calls: Calls | None = None,
        key: Hashable = None,
    ) -> None:
        self.run = run
        self.settle = settle
        self._record = record
        self.used = True
        self.layout = layout
        self.latest = UNKNOWN
        self.calls = calls or _NOTHING_KNOWN
        self.key = key
        self.twice: Callable[..., bool] = _never
        # On CUDA the alignment of an address is part of the signature, and `fits` does not see it.
        self.renewals = _RENEWALS + 1 if record is None or record.device.type == "cpu" else 0

    @property
    def record(self) -> CallRecord:
        """The facts of such a call."""
        return self._record or self.calls.record(self.key)

    def again(self) -> Run:
        """Makes `run` for the second call."""
        run = self.run = self.calls.run(self.key) if self.settle is None else self.settle()
        return run

    @property
    def fits(self) -> Callable[..., bool]:
        """``fits(*tensors)``: the tensors that are present are like those of an earlier call of this plan, in every
        respect that matters. Never true of what the plan does not serve, false of some that it does.
        """
        return self.latest[0]

    def renew(self, tensors: tuple[torch.Tensor, ...], calls: Calls | None) -> None:
        """Makes `fits` true of `tensors`, which the plan has just served; not of its first call, because many a
        call never comes again (each step of a decoder has its own lengths).

        Args:
            tensors: those that are present.
            calls: what recognised the call, or None.
        """
        if self.renewals > _RENEWALS:
            self.renewals = _RENEWALS
            if calls is None:
                self.calls.look_alike(tensors)
            return
        if self.run is None:  # another thread has made the plan just now
            self.again()
        if self.fits(*tensors) or self.twice(*tensors):
            return
        self.renewals -= 1
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            self.twice = _repeated_check(tensors)
        else:
            self.latest = tensor_check(tensors), any(tensor.requires_grad for tensor in tensors)


def _repeated_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """`tensor_check` for a call that passes a tensor more than once: true where the same places hold the same tensor
    again, and false wherever a gradient may be needed.
    """
    places: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(id(tensor), []).append(place)
    firsts = [found[0] for found in places.values()]
    names = [f"t{place}" for place in range(len(tensors))]
    same = [f"{names[found[0]]} is {names[place]}" for found in places.values() for place in found[1:]]
    tests = [*same, f"check({', '.join(names[place] for place in firsts)})"]
    if any(tensor.requires_grad for tensor in tensors):
        tests.append("not grad_enabled()")
    make = _repeated(tuple(names), tuple(tests))
    return make(tensor_check([tensors[place] for place in firsts]))


@lru_cache(maxsize=64)
def _repeated(names: tuple[str, ...], tests: tuple[str, ...]) -> Callable[..., Callable[..., bool]]:
    source = f"def make(check):\n    return lambda {', '.join(names)}: {' and '.join(tests)}\n"
    made: Callable[..., Callable[..., bool]] = execute(
        source, f"tileops check {len(names)} {' '.join(tests)}", {"grad_enabled": torch.is_grad_enabled}
    )["make"]
    return made


class Hot:
    """The latest plans of an op: tried before the call signature is put together.

    Attributes:
        bare: of calls without any optional input.
        full: of calls with all of them.
        of: for ops with a weight, the latest plan by the weight's id: one op serves many weights in turn. The
            id is a hint; `Plan.fits` decides. `bare` is then the latest plan of any weight.
    """

    __slots__ = ("bare", "full", "of")

    def __init__(self) -> None:
        nothing = CallRecord(None, torch.float32, torch.device("meta"), None)
        self.bare = self.full = Plan(_never, nothing)
        self.of: dict[int, Plan] = {}

    def remember(self, weight: torch.Tensor, plan: Plan) -> None:
        if len(self.of) >= _WEIGHTS:
            self.of.clear()
        self.of[id(weight)] = self.bare = plan


class PlanCache(dict[Hashable, Plan]):
    """Plans by call signature, at most `limit`, dropped by the clock algorithm.

    A hit only sets `Plan.used`: moving it to the front of a list, as a strict LRU does, would cost a tenth of
    a small call. What is dropped has not been used since the hand last passed it. Readers take no lock;
    `insert` needs the caller's.
    """

    def __init__(self, limit: int = 1024) -> None:
        super().__init__()
        self.limit = limit

    def insert(self, key: Hashable, plan: Plan) -> None:
        while len(self) >= self.limit:
            oldest = next(iter(self))
            candidate = self.pop(oldest)
            if candidate.used:
                candidate.used = False
                self[oldest] = candidate
        self[key] = plan


def template(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """A tensor of one element at most, expanded to `shape`, such that ``empty_like`` of it allocates a contiguous
    one.

    Half the price of ``torch.empty`` with its keyword arguments, and blind to a default device. None where
    torch would choose another layout, and for large outputs, which `pages` allocates.
    """
    size = tuple(shape)
    if pages.large_output(size, dtype, device):
        return None
    if math.prod(size) < 2:  # one element expanded to one is dense with its strides of zero, and they would stay
        return torch.empty(size, dtype=dtype, device=device)
    if not _expanded_becomes_contiguous(len(size)):
        return None
    return torch.empty((), dtype=dtype, device=device).expand(size)


@lru_cache(maxsize=64)
def _expanded_becomes_contiguous(ndim: int) -> bool:
    """Whether ``empty_like`` makes contiguous tensors of this rank out of expanded ones."""
    if ndim > 8:
        return False
    size = tuple(2 + axis % 3 for axis in range(ndim))
    # Not on the meta device: its first `empty_like` imports sympy, which takes half a second.
    expanded = torch.empty((), device="cpu").expand(size)
    return tuple(torch.empty_like(expanded).stride()) == contiguous_strides(size)


def allocator(output: OutputSpec, device: torch.device) -> Callable[[], torch.Tensor | None]:
    """A function that allocates one output."""
    if output is None:
        return lambda: None
    assert not isinstance(output, int)
    shape, dtype = output
    if pages.large_output(shape, dtype, device):
        return lambda: pages.allocate(shape, dtype)
    return lambda: torch.empty(shape, dtype=dtype, device=device)


def allocate_only(outputs: Sequence[OutputSpec], device: torch.device) -> Run:
    """A plan's function for a call that runs no kernel: meta tensors, or outputs without elements."""
    make = [output if isinstance(output, int) else allocator(output, device) for output in outputs]

    def run(*tensors: Any) -> Any:
        results = [tensors[item] if isinstance(item, int) else item() for item in make]
        return _result(results)

    return run


def _result(results: Sequence[Any]) -> Any:
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def allocate_and_launch(
    names: Sequence[str],
    outputs: Sequence[OutputSpec],
    device: torch.device,
    launch: Callable[..., None],
    held: Sequence[torch.Tensor | None] = (),
) -> Run:
    """A plan's function: allocates `outputs`, then ``launch(*inputs, *held, *outputs)`` on the right device.

    Args:
        names: of the tensors that a call passes, in order; ``out`` reaches the launch as the output that it is.
        outputs: what becomes of each output.
        device: the call device.
        launch: a bound kernel.
        held: the construction-time tensors.
    """
    member = direct.member_of(launch)
    if member is not None and len(outputs) == 1 and not held and OUT not in names:
        run = _native(member, outputs[0], device)
        if run is not None:
            return run
    sources = []
    values: list[Any] = []
    for output in outputs:
        if isinstance(output, int):
            values.append(None)
            sources.append(f"t{output}")
            continue
        like = None if output is None else template(*output, device)
        values.append(allocator(output, device) if like is None else like)
        sources.append("call" if like is None else "like")
    launched = tuple(f"t{place}" for place, name in enumerate(names) if name != OUT)
    make = _composer(len(names), launched, len(held), tuple(sources), device.type == "cuda")
    return make(launch, [*values, *held], device.index)


def _native(member: direct.Member, output: OutputSpec, device: torch.device) -> Run | None:
    """`allocate_and_launch` without Python, if that can be."""
    if output is None or isinstance(output, int) or pages.large_output(*output, device):
        return None
    return member.family.direct(member, *output)


def allocate_and_launch_once(outputs: Sequence[OutputSpec], device: torch.device, launch: Callable[..., None]) -> Run:
    """Like `allocate_and_launch` for a call that may never come again: cheap to make.

    Args:
        outputs: what becomes of each output; all are new.
        device: the call device, a CPU.
        launch: a bound kernel.
    """
    if len(outputs) == 1 and outputs[0] is not None:
        shape, dtype = outputs[0]  # type: ignore[misc]
        if not pages.large_output(shape, dtype, device):
            return one_output(shape, dtype, device, launch)
    make = [allocator(output, device) for output in outputs]

    def several(*tensors: torch.Tensor | None) -> Any:
        results = [allocate() for allocate in make]
        launch(*tensors, *results)
        return _result(results)

    return several


def one_output(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, launch: Callable[..., None]
) -> Callable[..., torch.Tensor]:
    """`allocate_and_launch_once` for a call with one output, which has elements and is not large."""
    strides = (shape[1], 1) if len(shape) == 2 else contiguous_strides(shape)

    def run(*tensors: torch.Tensor | None) -> torch.Tensor:
        # Half the price of ``torch.empty``, which parses its sizes.
        result = empty_strided(shape, strides, dtype=dtype, device=device)
        launch(*tensors, result)
        return result

    return run


@lru_cache(maxsize=256)
def _composer(
    count: int, launched: tuple[str, ...], held: int, sources: tuple[str, ...], guarded: bool
) -> Callable[..., Run]:
    """Writes out the calls instead of looping over tuples, which is what a small call would spend its time
    on.
    """
    outputs = len(sources)
    results = [source if source.startswith("t") else f"o{i}" for i, source in enumerate(sources)]
    kept = [f"v{outputs + i}" for i in range(held)]
    lines = [
        "def make(launch, values, index):",
        *(f"    v{i} = values[{i}]" for i in range(outputs + held)),
        f"    def run({', '.join(f't{i}' for i in range(count))}):",
        *(
            f"        o{i} = {f'empty_like(v{i})' if source == 'like' else f'v{i}()'}"
            for i, source in enumerate(sources)
            if not source.startswith("t")
        ),
    ]
    call = f"launch({', '.join([*launched, *kept, *results])})"
    if guarded:
        lines += [
            "        if current_device() == index:",
            f"            {call}",
            "        else:",
            "            with device_guard(index):",
            f"                {call}",
        ]
    else:
        lines.append(f"        {call}")
    lines += [f"        return {', '.join(results) if results else 'None'}", "    return run"]
    names = {
        "empty_like": torch.empty_like,
        "current_device": torch.cuda.current_device,
        "device_guard": torch.cuda.device,
    }
    name = f"tileops plan {','.join(launched)}-{held}-{'.'.join(sources)}-{guarded}"
    return execute("\n".join(lines) + "\n", name, names)["make"]


def execute(source: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs generated source so that tracebacks and ``inspect.getsource`` show it; returns its namespace."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # No __name__: where there is one, Dynamo imports that module to find the globals of the code that it
    # traces.
    namespace = dict(names)
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return namespace
