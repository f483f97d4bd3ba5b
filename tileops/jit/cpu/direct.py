"""Calls without Python between them and their kernels: allocate the output, read the addresses, run.

A small elementwise operation takes less time than the Python code around it, and one whose data fills the caches finds
that code evicted: two to three microseconds of twenty. Every kernel's wrapper therefore has further functions, which do
the work of a whole call on torch's own tensors (`direct_ir`). What they cannot do, a tensor of another type or memory
that is not to be had, they leave to an ordinary Python function.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tileops.jit.cpu import _torch_tensors, parallel, scratch
from tileops.jit.cpu._torch_tensors import address_of
from tileops.jit.cpu.direct_ir import (
    ENTRY,
    ENTRY_WITH_STATE,
    FIRST_TENSOR,
    FRAME,
    HEAD,
    MAX_TENSORS,
    NOTHING,
    STEP,
    TABLE,
)

if TYPE_CHECKING:
    import torch

    from tileops.jit.cpu.kernel import CpuEntry

#: The place of scratch memory, see `Address`.
SCRATCH = -1


class Address(NamedTuple):
    """An argument of a kernel: the address of a tensor, or of scratch memory.

    Attributes:
        place: number of the tensor among those that are launched, the output last; or `SCRATCH`.
        offset: bytes that are added; None where they differ from call to call.
    """

    place: int
    offset: int | None = 0


#: None: an integer that differs from call to call.
Argument = int | float | Address | None
#: A loaded kernel, and its arguments after ``threads`` and ``n``.
Step = tuple["CpuEntry", Sequence[Argument]]


class Member(NamedTuple):
    """A call of a `Family`.

    Attributes:
        family: the others.
        values: for each kernel in turn its units, the limit of its threads (see `parallel.limit`; no kernel gets more
            than the last one) and the integers that differ from call to call.
        keep: owns the memory behind addresses among them.
        scratch: bytes of scratch memory.
        per_thread: further ones for each thread of the last kernel.
    """

    family: Family
    values: tuple[int, ...]
    keep: Any = None
    scratch: int = 0
    per_thread: int = 0

    def launcher(self) -> Callable[..., None]:
        """``launch(*tensors)``; `member_of` finds the member in it."""
        return self.family.launcher(self)

    @property
    def limit(self) -> int:
        """The limit of the last kernel's threads."""
        _, arguments = self.family.steps[-1]
        return self.values[-1 - sum(map(_varies, arguments))]


def _varies(item: Argument) -> bool:
    return item is None or (type(item) is Address and item.offset is None)


class Family:
    """Calls that differ in the sizes of their output and in a few integers of the arguments of the kernels that they
    run one after the other: a further one costs little.
    """

    __slots__ = ("_frames", "_launcher", "_tensors", "steps")

    def __init__(self, steps: Sequence[Step], tensors: int) -> None:
        """
        Args:
            steps: the kernels.
            tensors: how many tensors are launched, with the output.
        """
        self.steps = steps
        self._tensors = tensors
        self._launcher: Callable[[Member], Callable[..., None]] | None = None
        self._frames: dict[tuple[int, torch.dtype], _Frame | None] = {}

    def launcher(self, member: Member) -> Callable[..., None]:
        """``launch(*tensors)`` of a call."""
        make = self._launcher
        if make is None:
            make = self._launcher = self._written_out()
        return make(member)

    def _written_out(self) -> Callable[[Member], Callable[..., None]]:
        forms: list[tuple[_Item, ...]] = []
        constants: list[Any] = []
        for _, arguments in self.steps:
            form: list[_Item] = []
            for item in arguments:
                if type(item) is Address:
                    form.append((item.place, "" if item.offset == 0 else "v" if item.offset is None else "c"))
                    constants += [item.offset] if item.offset else []
                else:
                    form.append("v" if item is None else "c")
                    constants += [] if item is None else [item]
            forms.append(tuple(form))
        launches = tuple([entry.launch for entry, _ in self.steps])
        return _form(tuple(forms), self._tensors)(launches, tuple(constants), parallel.team)

    def direct(self, member: Member, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[..., Any] | None:
        """``run(*tensors)``: allocates the output, runs the kernels, returns the output.

        Args:
            member: the call; it passes every tensor but the output, and None where the kernels do not use one.
            shape: of the output, which is contiguous and on the CPU.
            dtype: of the output.

        Returns:
            None where that cannot be done: many tensors, much scratch memory, a torch whose tensors are not known.
        """
        frame = self._frame(member, shape, dtype)
        return None if frame is None else frame.function(frame.state(member, shape))

    def once(self, member: Member, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[..., Any] | None:
        """`direct` for a call that may never come again: what it gives is cheaper to make."""
        frame = self._frame(member, shape, dtype)
        return None if frame is None else partial(frame.stateless, frame.state(member, shape))

    def _frame(self, member: Member, shape: tuple[int, ...], dtype: torch.dtype) -> _Frame | None:
        if member.scratch > scratch.KEEP_BYTES:
            return None
        key = len(shape), dtype
        try:
            return self._frames[key]
        except KeyError:
            frame = self._frames[key] = self._framed(*key)
            return frame

    def _framed(self, rank: int, dtype: torch.dtype) -> _Frame | None:
        functions, count = _torch_tensors.functions(), self._tensors - 1
        if functions is None or count > MAX_TENSORS or dtype not in functions.dtypes:
            return None
        tables: list[int] = []
        used, word = 0, len(HEAD)
        for entry, arguments in self.steps:
            limit_at = word + 1
            table, places, after = _table(entry, arguments, word)
            tables += table
            used |= sum(1 << place for place in places if 0 <= place < count)
            word = after
        facts = {
            "count": count,
            "used": used,
            "rank": rank,
            "dtype": functions.dtypes[dtype],
            "extents": word,
            "limit": limit_at,
            "steps": len(self.steps),
            "ceiling": ctypes.addressof(parallel.ceiling),
            "scratch": ctypes.addressof(scratch.shared.facts),
        }
        words = [*(facts[name] if name in facts else getattr(functions, name) for name in FRAME), *tables]
        frame = struct.pack(f"@{len(words)}q", *words)
        pack, extents = struct.Struct(f"@{word + 2 * rank}q").pack, _extents(rank)
        where = address_of(frame)
        last = self.steps[-1][0]
        kept = frame, scratch.shared, *(entry.loaded for entry, _ in self.steps)

        def state(member: Member, shape: tuple[int, ...]) -> tuple[Any, ...]:
            _, values, keep, nbytes, per_thread = member
            descriptor = pack(where, nbytes, per_thread, 0, *values, *extents(*shape))
            return descriptor, partial(_in_python, member, shape, dtype), keep, kept

        stateless = last.builtin(ENTRY_WITH_STATE, "direct(state, *tensors)")
        return _Frame(state, last.builtins(ENTRY, "direct(*tensors)"), stateless)


class _Frame(NamedTuple):
    """What calls of a family with outputs of one rank and dtype have in common.

    Attributes:
        state: the state of a member with an output of some shape, see `direct_ir`.
        function: makes a function of tensors from a state.
        stateless: a function of a state and tensors.
    """

    state: Callable[[Member, tuple[int, ...]], tuple[Any, ...]]
    function: Callable[[tuple[Any, ...]], Callable[..., Any]]
    stateless: Callable[..., Any]


def _table(entry: CpuEntry, arguments: Sequence[Argument], word: int) -> tuple[list[int], set[int], int]:
    """A kernel's table, see `direct_ir`, with the places of its tensors and the word of a descriptor that is the next
    kernel's.

    Args:
        entry: the kernel.
        arguments: its arguments.
        word: the word with its units.
    """
    zero, varying = HEAD.index("zero"), word + 2
    places, words = set(), []
    for kind, item in zip(entry.program.args, arguments, strict=True):
        if type(item) is Address:
            places.add(item.place)
            source, constant, varies = FIRST_TENSOR + item.place, item.offset or 0, item.offset is None
        else:
            source, constant, varies = NOTHING, _bits(kind, item), item is None
        words += [source, constant, varying if varies else zero]
        varying += varies
    return [entry.loaded.addresses[STEP], len(TABLE) + len(words), word, *words], places, varying


@lru_cache(maxsize=64)
def _extents(rank: int) -> Callable[..., tuple[int, ...]]:
    """From the sizes of a dense tensor to its sizes and strides."""
    sizes = [f"s{axis}" for axis in range(rank)]
    strides = ["*".join(sizes[axis + 1 :]) or "1" for axis in range(rank)]
    made: Callable[..., tuple[int, ...]] = eval(
        f"lambda {', '.join(sizes)}: ({''.join(f'{item}, ' for item in sizes + strides)})"
    )
    return made


_Item = tuple[int, str] | str


@lru_cache(maxsize=256)
def _form(forms: tuple[tuple[_Item, ...], ...], tensors: int) -> Callable[..., Callable[[Member], Callable[..., None]]]:
    """Writes a launch from Python out: a loop over tensors costs more than a small kernel.

    Args:
        forms: of each kernel each argument: "c" for a constant, "v" for an integer that differs from call to call, for
            an address the place and which of them is added, if any.
        tensors: how many are launched.
    """
    numbers = {"c": itertools.count(), "v": itertools.count()}
    values: list[str] = []
    calls: list[str] = []
    borrows = any(type(item) is tuple and item[0] == SCRATCH for form in forms for item in form)
    for step, form in enumerate(forms):
        values += [f"units{step}", f"limit{step}"]
        passed = []
        for item in form:
            kind = item if isinstance(item, str) else item[1]
            name = f"{kind}{next(numbers[kind])}" if kind else ""
            values += [name] if kind == "v" else []
            if not isinstance(item, str):
                address = "memory" if item[0] == SCRATCH else f"t{item[0]}.data_ptr()"
                name = f"{address} + {name}" if name else address
            passed.append(name)
        last = step == len(forms) - 1
        threads = "threads" if last else f"limit{step} if limit{step} < threads else threads"
        calls.append(f"launch{step}({', '.join([threads, f'units{step}', *passed])})")
    limit = f"limit{len(forms) - 1}"
    constants = [f"c{number}" for number in range(next(numbers["c"]))]
    body = [f"threads = team({limit}) if {limit} else 0"]
    if borrows:
        body += ["block = take(scratch + (threads or 1) * per_thread)", "memory = block.data_ptr()"]
    body += [*calls, *(["give(block)"] if borrows else [])]
    source = "\n".join(
        [
            "def known(launches, constants, team):",
            *(f"    {_unpacked(f'launch{step}' for step in range(len(forms)))} = launches",),
            *([f"    {_unpacked(constants)} = constants"] if constants else []),
            "    def make(member):",
            f"        _, ({', '.join(values)},), _, scratch, per_thread = member",
            f"        def launch({', '.join(f't{place}' for place in range(tensors))}, *, _member=member):",
            *(f"            {line}" for line in body),
            "        return launch",
            "    return make",
            "",
        ]
    )
    namespace: dict[str, Any] = {"take": scratch.take, "give": scratch.give}
    exec(compile(source, "<tileops launch>", "exec"), namespace)
    made: Callable[..., Any] = namespace["known"]
    return made


def _unpacked(names: Iterable[str]) -> str:
    """The left side of an assignment from a tuple."""
    return f"({', '.join(names)},)"


def launcher(
    entry: CpuEntry,
    limit: int,
    units: int,
    arguments: Sequence[Argument],
    tensors: int,
    keep: Any = None,
    per_thread: int = 0,
) -> Callable[..., None]:
    """``launch(*tensors)`` of one kernel that gets constants and addresses; `member_of` finds its call in it.

    Args:
        entry: the loaded kernel.
        limit: see `parallel.limit`.
        units: units of work.
        arguments: of the entry after ``threads`` and ``n``.
        tensors: how many tensors are launched, with the output.
        keep: owns the memory behind constant addresses.
        per_thread: bytes of scratch memory for each thread.
    """
    return Member(Family([(entry, arguments)], tensors), (units, limit), keep, 0, per_thread).launcher()


def member_of(launch: Callable[..., Any]) -> Member | None:
    """The call of a function that `Member.launcher` made, or None."""
    defaults = getattr(launch, "__kwdefaults__", None)
    return None if defaults is None else defaults.get("_member")


def _in_python(member: Member, shape: tuple[int, ...], dtype: torch.dtype, *tensors: Any) -> Any:
    """What the native function of a call leaves to Python."""
    import torch

    result = torch.empty(shape, dtype=dtype, device="cpu")
    member.launcher()(*tensors, result)
    if member.scratch or member.per_thread:  # which may have been why
        scratch.shared.grow(member.scratch + member.per_thread * max(parallel.team(member.limit), 1))
    return result


def describe() -> str:
    """How small calls run, for `tileops doctor`."""
    reason = _torch_tensors.reason()
    return "native" if reason is None else f"through Python: {reason}"


def _bits(kind: str, value: Any) -> int:
    if kind == "f32":
        return int.from_bytes(struct.pack("<f", value), "little")
    if kind == "f64":
        return int.from_bytes(struct.pack("<d", value), "little", signed=True)
    return int(value or 0)
