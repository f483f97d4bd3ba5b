"""Calls without Python between them and the kernel: allocate the output, read the addresses, run.

A small elementwise operation takes less time than the Python code around it, and one whose data fills the caches finds
that code evicted: two to three microseconds of twenty. Every kernel's wrapper therefore has a second built-in function,
which does the work of a whole call on torch's own tensors (`direct_ir`). What it cannot do, a tensor of another type or
memory that is not to be had, it leaves to an ordinary Python function.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tileops.jit.cpu import _torch_tensors, parallel
from tileops.jit.cpu._torch_tensors import TensorFunctions, address_of
from tileops.jit.cpu.direct_ir import ENTRY, WORDS

if TYPE_CHECKING:
    import torch

    from tileops.jit.cpu.kernel import CpuEntry

#: Tensors that a call may pass.
MAX_TENSORS = 8


class Address(NamedTuple):
    """An argument of a kernel: the address of a tensor.

    Attributes:
        place: number of the tensor among those that are launched, the output last.
        offset: bytes that are added.
    """

    place: int
    offset: int = 0


Argument = int | float | Address


class Binding(NamedTuple):
    """A kernel bound to a call of one signature: what its entry gets.

    Attributes:
        entry: the loaded kernel.
        limit: see `parallel.limit`.
        units: units of work.
        arguments: of the entry after ``threads`` and ``n``.
        keep: owns the memory behind constant addresses.
    """

    entry: CpuEntry
    limit: int
    units: int
    arguments: tuple[Argument, ...]
    keep: Any = None


def launcher(
    entry: CpuEntry, limit: int, units: int, arguments: Sequence[Argument], tensors: int, keep: Any = None
) -> Callable[..., None]:
    """``launch(*tensors)`` of a kernel that gets constants and addresses; `binding_of` finds them in it.

    Args:
        entry: the loaded kernel.
        limit: see `parallel.limit`.
        units: units of work.
        arguments: of the entry after ``threads`` and ``n``.
        tensors: how many tensors are launched, with the output.
        keep: owns the memory behind constant addresses.
    """
    return launch_form(arguments, tensors)(entry, limit, units, tuple(arguments), keep)


class LaunchForm:
    """`launcher` for calls that differ in their constants: which arguments are addresses was looked at once."""

    __slots__ = ("_parallel", "_serial")

    def __init__(self, pattern: tuple[tuple[int, bool] | None, ...], tensors: int) -> None:
        self._serial, self._parallel = (_maker(pattern, tensors, serial) for serial in (True, False))

    def __call__(
        self, entry: CpuEntry, limit: int, units: int, arguments: tuple[Argument, ...], keep: Any = None
    ) -> Callable[..., None]:
        make = self._parallel if limit else self._serial
        binding = Binding(entry, limit, units, arguments, keep)
        made: Callable[..., None] = make(binding, entry.launch, parallel.team, limit, units, *arguments)
        return made


def launch_form(arguments: Sequence[Argument], tensors: int) -> LaunchForm:
    """The form of launches with arguments such as these.

    Args:
        arguments: see `launcher`; of the constants only the places count.
        tensors: how many tensors are launched, with the output.
    """
    return _form(
        tuple([(item.place, item.offset != 0) if type(item) is Address else None for item in arguments]), tensors
    )


@lru_cache(maxsize=256)
def _form(pattern: tuple[tuple[int, bool] | None, ...], tensors: int) -> LaunchForm:
    return LaunchForm(pattern, tensors)


def binding_of(launch: Callable[..., Any]) -> Binding | None:
    """The binding of a function that `launcher` made, or None."""
    defaults = getattr(launch, "__kwdefaults__", None)
    return None if defaults is None else defaults.get("_binding")


def _maker(pattern: tuple[tuple[int, bool] | None, ...], tensors: int, serial: bool) -> Callable[..., Any]:
    """Writes the launch out: a loop over tensors costs more than a small kernel."""
    passed = []
    for number, item in enumerate(pattern):
        if item is None:
            passed.append(f"v{number}")
        else:
            place, moved = item
            passed.append(f"t{place}.data_ptr()" + (f" + v{number}_offset" if moved else ""))
    threads = "0" if serial else "team(limit)"
    formal = "".join(f", v{number}" for number in range(len(pattern)))
    offsets = [f"v{number}.offset" for number, item in enumerate(pattern) if item is not None and item[1]]
    source = (
        f"def make(binding, entry, team, limit, units{formal}):\n"
        + "".join(f"    {offset.replace('.', '_')} = {offset}\n" for offset in offsets)
        + f"    def launch({', '.join(f't{place}' for place in range(tensors))}, *, _binding=binding):\n"
        f"        entry({', '.join([threads, 'units', *passed])})\n"
        "    return launch\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<tileops launch>", "exec"), namespace)
    made: Callable[..., Any] = namespace["make"]
    return made


def direct(
    binding: Binding, count: int, shape: tuple[int, ...], dtype: torch.dtype, otherwise: Callable[..., Any]
) -> Callable[..., Any] | None:
    """``run(*tensors)``: allocates the output, runs the kernel, returns the output.

    Args:
        binding: a kernel that is launched with the tensors of the call and then the output.
        count: tensors that a call passes; None among them where the kernel does not use that one.
        shape: of the output, which is contiguous and on the CPU.
        dtype: of the output.
        otherwise: does the same in Python, for tensors of other types and where memory is short.

    Returns:
        None where that cannot be done: many tensors, a torch whose tensors are not known.
    """
    functions = _torch_tensors.functions()
    if functions is None or count > MAX_TENSORS or dtype not in functions.dtypes:
        return None
    extents = _extents(len(shape))(*shape)
    words = _words(functions, binding, count, dtype, len(shape), address_of(extents))
    descriptor = struct.pack(f"@{len(words)}q", *words)
    return binding.entry.builtin(ENTRY, _DOC, (descriptor, otherwise, extents, binding))


_DOC = "direct(*tensors)"


def _words(
    functions: TensorFunctions, binding: Binding, count: int, dtype: torch.dtype, rank: int, extents: int
) -> list[int]:
    """The descriptor of a call whose output has these extents, see `direct_ir`."""
    places = {item.place for item in binding.arguments if type(item) is Address}
    header = {
        "count": count,
        "used": sum(1 << place for place in places if place < count),
        "units": binding.units,
        "limit": binding.limit,
        "ceiling": ctypes.addressof(parallel.ceiling),
        "rank": rank,
        "sizes": extents,
        "strides": extents + 8 * rank,
        "dtype": functions.dtypes[dtype],
    }
    words = [header[name] if name in header else getattr(functions, name) for name in WORDS]
    for kind, item in zip(binding.entry.program.args, binding.arguments, strict=True):
        words += [item.place, item.offset] if isinstance(item, Address) else [-1, _bits(kind, item)]
    return words


@lru_cache(maxsize=64)
def _extents(rank: int) -> Callable[..., bytes]:
    """From the sizes of a dense tensor to its sizes and strides in memory."""
    sizes = [f"s{axis}" for axis in range(rank)]
    strides = ["*".join(sizes[axis + 1 :]) or "1" for axis in range(rank)]
    source = f"lambda {', '.join(sizes)}: pack({', '.join([*sizes, *strides])})"
    made: Callable[..., bytes] = eval(source, {"pack": struct.Struct(f"@{2 * rank}q").pack})
    return made


class Family:
    """Calls of a kernel that differ in a few integers of its arguments and in the sizes of their output: a further one
    costs little.
    """

    __slots__ = ("_arguments", "_entry", "_form", "_makers", "_tensors", "_varying")

    def __init__(self, entry: CpuEntry, arguments: Sequence[Argument | Offset | None], tensors: int) -> None:
        """
        Args:
            entry: the loaded kernel.
            arguments: of the entry after ``threads`` and ``n``: None where an integer differs between calls, and an
                `Offset` for a tensor's address to which one is added.
            tensors: how many tensors are launched, with the output.
        """
        self._entry = entry
        self._tensors = tensors
        self._arguments: list[Argument] = [
            0 if item is None else Address(item.place, 1) if type(item) is Offset else item  # type: ignore[misc]
            for item in arguments
        ]
        self._varying = [place for place, item in enumerate(arguments) if item is None or type(item) is Offset]
        self._form = launch_form(self._arguments, tensors)
        self._makers: dict[tuple[int, torch.dtype], Callable[..., Callable[..., Any]] | None] = {}

    def launcher(self, member: Member) -> Callable[..., None]:
        """``launch(*tensors)`` of a call; `binding_of` finds its binding."""
        _, limit, units, values, keep = member
        arguments = list(self._arguments)
        for place, value in zip(self._varying, values, strict=True):
            item = arguments[place]
            arguments[place] = Address(item.place, value) if type(item) is Address else value
        return self._form(self._entry, limit, units, tuple(arguments), keep)

    def direct(self, member: Member, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[..., Any] | None:
        """See `direct`; every tensor but the output is passed."""
        key = len(shape), dtype
        try:
            make = self._makers[key]
        except KeyError:
            make = self._makers[key] = self._maker(*key)
        return None if make is None else make(member, shape)

    def _maker(self, rank: int, dtype: torch.dtype) -> Callable[..., Callable[..., Any]] | None:
        functions, count = _torch_tensors.functions(), self._tensors - 1
        if functions is None or count > MAX_TENSORS or dtype not in functions.dtypes:
            return None
        binding = Binding(self._entry, 0, 0, tuple(self._arguments))
        words = _words(functions, binding, count, dtype, rank, 0)
        pack, extents_of = struct.Struct(f"@{len(words)}q").pack, _extents(rank)
        units_at, limit_at, sizes_at, strides_at = (
            WORDS.index(name) for name in ("units", "limit", "sizes", "strides")
        )
        varying = [len(WORDS) + 2 * place + 1 for place in self._varying]
        builtin, strides_from = self._entry.builtins(ENTRY, _DOC), 8 * rank

        def make(member: Member, shape: tuple[int, ...]) -> Callable[..., Any]:
            _, limit, units, values, keep = member
            extents = extents_of(*shape)
            found = words.copy()
            found[units_at] = units
            found[limit_at] = limit
            found[sizes_at] = where = address_of(extents)
            found[strides_at] = where + strides_from
            for place, value in zip(varying, values):  # noqa: B905  # as many, and at every call of new sizes
                found[place] = value
            return builtin((pack(*found), partial(_in_python, member, shape, dtype), extents, keep))

        return make


class Offset(NamedTuple):
    """An argument of a `Family`: the address of a tensor and bytes that differ from call to call.

    Attributes:
        place: see `Address`.
    """

    place: int


class Member(NamedTuple):
    """A call of a `Family`.

    Attributes:
        family: the others.
        limit: see `parallel.limit`.
        units: units of work.
        values: the integers that differ, in the order of the arguments.
        keep: owns the memory behind addresses among them.
    """

    family: Family
    limit: int
    units: int
    values: tuple[int, ...]
    keep: Any = None

    def launcher(self) -> Callable[..., None]:
        """``launch(*tensors)``; `binding_of` finds its binding."""
        return self.family.launcher(self)


def _in_python(member: Member, shape: tuple[int, ...], dtype: torch.dtype, *tensors: Any) -> Any:
    """What the native function of a call leaves to Python."""
    import torch

    result = torch.empty(shape, dtype=dtype, device="cpu")
    member.launcher()(*tensors, result)
    return result


def describe() -> str:
    """How small calls run, for `tileops doctor`."""
    reason = _torch_tensors.reason()
    return "native" if reason is None else f"through Python: {reason}"


def _bits(kind: str, value: float | int) -> int:
    if kind == "f32":
        return int.from_bytes(struct.pack("<f", value), "little")
    if kind == "f64":
        return int.from_bytes(struct.pack("<d", value), "little", signed=True)
    return int(value)
