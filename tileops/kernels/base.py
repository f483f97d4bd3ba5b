"""What a kernel is: the facts of a call, the interface that it serves, and the implementation class.

An *interface* is a place in an op's computation where a kernel is called. It fixes the call-spec type, a
frozen dataclass of plain values that states everything an implementation may look at, and the tensor order of
the launch. A *kernel* is a class that implements one interface for some devices and some calls. Choosing,
compiling and launching are separate steps:

    Kernel.refusal(call)            may this class serve the call? a reason if not
    Kernel.programs(call, config)   what has to be compiled; the build identity is (class, programs)
    Kernel(config, entries)         the compiled kernel; one instance serves every call of that identity
    kernel.bind(call)               launch(*tensors) with the sizes and strides of the call closed over

Nothing here touches a tensor or imports torch, so that a call can be hashed, sent to a worker process and
compiled ahead for a device that this machine lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from tileops.autotune.space import TileSpace
    from tileops.jit.cpu.direct import Member
    from tileops.jit.program import Program

Config = dict[str, "int | bool | str"]
Launch = Callable[..., None]

#: dtype name -> (bytes of an element, the short name that programs use)
DTYPES: dict[str, tuple[int, str]] = {
    "bool": (1, "b1"),
    "uint8": (1, "u8"),
    "int8": (1, "i8"),
    "int16": (2, "i16"),
    "int32": (4, "i32"),
    "int64": (8, "i64"),
    "float8_e4m3fn": (1, "f8e4m3"),
    "float8_e5m2": (1, "f8e5m2"),
    "float16": (2, "f16"),
    "bfloat16": (2, "bf16"),
    "float32": (4, "f32"),
    "float64": (8, "f64"),
    "complex64": (8, "c64"),
    "complex128": (16, "c128"),
}
#: Dtypes of the kernels that compute in float32 and round once.
FLOAT_DTYPES = ("float32", "bfloat16", "float16")

#: Frozen instances, too, are filled while they are made.
_set = object.__setattr__


@lru_cache(maxsize=1024)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor of `shape`."""
    strides = []
    step = 1
    for size in shape[::-1]:
        strides.append(step)
        if size > 1:
            step *= size
    return tuple(strides[::-1])


@dataclass(frozen=True)
class DeviceFacts:
    """The device of a call, as far as a kernel may look at it.

    Attributes:
        type: "cpu" or "cuda".
        index: number of the device; 0 on the CPU.
        arch: compute capability such as "sm_90"; None on the CPU (the CPU is a property of the process:
            `jit.cpu_target()`).
        sm_count: streaming multiprocessors; 0 on the CPU.
        smem_per_block: bytes of shared memory that one block may ask for; 0 on the CPU.
    """

    type: str = "cpu"
    index: int = 0
    arch: str | None = None
    sm_count: int = 0
    smem_per_block: int = 0


class _Made:
    """What is made at every call of a new kind, and so has to be made fast."""

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """As the constructor, from a new dict with the value of every field: many fields cost no more than few, a third
        of the constructor's time. The dict may hold cached properties too, where they are known.
        """
        new = object.__new__(cls)
        _set(new, "__dict__", values)
        return new


@dataclass(frozen=True)
class TensorSpec(_Made):
    """One tensor of a call, in plain values.

    Attributes:
        device: "cpu", "cuda:0", ...
        dtype: name of the dtype, for example "bfloat16".
        shape: sizes.
        strides: steps in elements; 0 along an expanded axis.
        alignment: bytes that the address is known to be a multiple of. On CUDA 16, 8, 4, ... down to the
            element; on the CPU always the element size, because CPU kernels load unaligned at full speed and
            must not rely on more.
    """

    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int

    @classmethod
    def contiguous(cls, dtype: str, shape: tuple[int, ...], device: str = "cpu") -> TensorSpec:
        """The spec of a freshly allocated tensor."""
        return cls.made(
            {
                "device": device,
                "dtype": dtype,
                "shape": tuple(shape),
                "strides": contiguous_strides(tuple(shape)),
                "alignment": DTYPES[dtype][0] if device == "cpu" else 16,
                "is_contiguous": True,
            }
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype][0]

    @property
    def short(self) -> str:
        """Name of the dtype in programs: "f32", "bf16", "f16", ..."""
        return DTYPES[self.dtype][1]

    @cached_property
    def is_contiguous(self) -> bool:
        """True where strides equal those of a contiguous tensor on every axis that has more than one
        element.
        """
        dense = contiguous_strides(self.shape)
        return self.numel == 0 or all(
            size == 1 or stride == want for size, stride, want in zip(self.shape, self.strides, dense, strict=True)
        )

    def __str__(self) -> str:
        layout = "" if self.is_contiguous else f", strides {list(self.strides)}"
        return f"{self.dtype}{list(self.shape)} on {self.device}{layout}"


@dataclass(frozen=True, kw_only=True)
class CallSpec(_Made):
    """Base of the frozen facts of one call. Subclasses add `TensorSpec` fields and parameters, all hashable.

    Two calls on two devices of one kind are the same call for the choice of a kernel where architecture and
    sizes agree.
    """

    device: DeviceFacts = field(default_factory=DeviceFacts)

    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors that the call has, by field name."""
        found = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value for name, value in found if isinstance(value, TensorSpec)}

    def describe(self) -> str:
        """One line for error messages: every tensor and parameter."""
        shown = (f"{item.name}={_show(getattr(self, item.name))}" for item in fields(self) if item.name != "device")
        where = self.device.type if self.device.arch is None else f"{self.device.type} ({self.device.arch})"
        return f"{', '.join(shown)}, device={where}"


def _show(value: object) -> str:
    return f"<{value}>" if isinstance(value, TensorSpec) else repr(value)


class KernelInterface:
    """A place where an op calls a kernel. Subclasses are named ``{Name}{Fwd|Bwd}Interface`` and only state
    facts.

    Attributes:
        call_spec: the `CallSpec` subclass.
        tensors: field names of `call_spec` in the order in which `launch` receives the tensors, outputs last.
            An optional tensor that the call lacks is passed as None.
    """

    call_spec: ClassVar[type[CallSpec]]
    tensors: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "call_spec" not in cls.__dict__:
            return  # an implementation, not an interface
        known = {item.name for item in fields(cls.call_spec)}
        unknown = [name for name in cls.tensors if name not in known]
        if unknown:
            raise TypeError(f"{cls.__name__}.tensors names {unknown}, which are no fields of {cls.call_spec.__name__}")


class Kernel:
    """Base of in-tree implementations. A subclass also inherits its interface: ``class K(Kernel,
    RMSNormFwdInterface)``.

    Attributes:
        devices: kinds of device that the class runs on.
        supported_archs: CUDA architectures ("sm_80", ...), or None for every one.
        general: the fallback of its interface: chosen only when no other implementation accepts the call. One
            at most.
        preferred_over: implementations of the same interface that this one beats where both accept a call.
        tile_space: the tuner's search space, or None for a kernel without tile parameters.
    """

    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})
    supported_archs: ClassVar[frozenset[str] | None] = None
    general: ClassVar[bool] = False
    preferred_over: ClassVar[tuple[type[Kernel], ...]] = ()
    tile_space: ClassVar[TileSpace | None] = None

    @classmethod
    def refusal(cls, call: Any) -> str | None:
        """Why this class does not serve `call`, or None if it does. Overrides end in ``return
        super().refusal(call)``.
        """
        return None

    @classmethod
    def default_config(cls, call: Any) -> Config:
        """Tile parameters by name for `call`, chosen without measuring. {} for a kernel without any."""
        return {}

    @classmethod
    def programs(cls, call: Any, config: Config) -> dict[str, Program]:
        """What has to be compiled for `call`, by a name that `entries` then carries.

        Only compile classes may enter (dtypes, flags, extents from small closed sets, layout classes): a
        kernel compiles at most eight variants per dtype and config, however many shapes it meets.
        """
        raise NotImplementedError(f"{cls.__name__} does not say what it compiles: define programs(call, config)")

    @classmethod
    def compile_class(cls, call: Any) -> Hashable:
        """Everything of `call` that `refusal`, `default_config`, `programs` and `identity` look at, besides its device:
        calls of one op with equal classes are served by one kernel instance, and choosing it again costs a look-up.

        None where a kernel does not say; then it is asked everything for each new signature. It is asked for the class
        before `refusal`, so it answers for any call (None for one that it refuses will do). Sizes may enter only as the
        few cases that they decide, as in `programs`.
        """
        return None

    @classmethod
    def identity(cls, call: Any, config: Config) -> Hashable:
        """The build identity: calls with equal identity share one kernel instance."""
        programs = cls.programs(call, config)
        named = tuple(programs.items()) if len(programs) < 2 else tuple(sorted(programs.items()))
        return cls, named, tuple(sorted(config.items()))

    def __init__(self, config: Config, entries: Mapping[str, Any]) -> None:
        self.config = dict(config)
        self.entries = dict(entries)

    def bind(self, call: Any) -> Launch:
        """Returns ``launch(*tensors)``, tensors in the order of the interface, None where absent.

        Called once per call signature; what it returns runs at every call, so sizes, strides and thread limits are
        closed over and only addresses are read: ``entry.launch(team(limit), n, x.data_ptr(), out.data_ptr(), ...)``.
        It must be safe to run in several threads at once.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be launched: define bind(call)")

    def resized(self, call: Any) -> Callable[..., Launch | Member | None] | None:
        """Returns ``at(*shapes)``, which gives what `bind` gives for a call like `call` but for its shapes, or None
        where the kernel would be another. Optional: a call of new sizes then needs no call spec. A kernel that is
        launched once may give a `tileops.jit.cpu.direct.Member`, which costs least.

        Shapes are those of the tensors that `call` has, in the order of the interface. All tensors are dense in the
        calls for which `at` is asked, and were in `call`; dtypes, presence, parameters and the settings in force are
        those of `call`.
        """
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in sorted(self.config.items()))})"


def interface_of(kernel: type[Kernel]) -> type[KernelInterface]:
    """The one interface that a kernel class implements.

    Raises:
        TypeError: it implements none, or several.
    """
    found = [base for base in kernel.__mro__ if "call_spec" in base.__dict__ and issubclass(base, KernelInterface)]
    if len(found) != 1:
        names = ", ".join(base.__name__ for base in found) or "none"
        raise TypeError(f"{kernel.__name__} must implement exactly one kernel interface, it implements {names}")
    return found[0]
