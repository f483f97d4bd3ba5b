"""What the host side of CUDA kernels shares: dtypes that they take, access widths, grids."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from tileops.kernels.base import FLOAT_DTYPES, CallSpec, DeviceFacts, Kernel, TensorSpec

T = TypeVar("T")

#: Bytes of the widest access of a thread.
VECTOR_BYTES = 16
#: Streaming multiprocessors assumed where a call does not say (a kernel compiled ahead for another machine).
_USUAL_SM_COUNT = 108
#: Blocks of a launch at most; kernels loop over what remains.
MAX_BLOCKS = 1 << 22


def refuse_float_call(call: CallSpec, tensor: TensorSpec) -> str | None:
    """Why a kernel of float32, bfloat16 and float16 does not serve `call`, or None; `tensor` states its dtype."""
    return _refuse_dtype(tensor, FLOAT_DTYPES) or _refuse_arch(call)


def refuse_call(call: CallSpec, dtypes: Sequence[str]) -> str | None:
    """Why a kernel whose tensors are of `dtypes` does not serve `call`, or None."""
    reasons = (_refuse_dtype(tensor, dtypes) for tensor in call.tensors().values())
    return next(filter(None, reasons), None) or _refuse_arch(call)


def _refuse_dtype(tensor: TensorSpec, dtypes: Sequence[str]) -> str | None:
    return None if tensor.dtype in dtypes else f"dtype {tensor.dtype}; the CUDA kernel takes {', '.join(dtypes)}"


def _refuse_arch(call: CallSpec) -> str | None:
    capability = re.match(r"sm_(\d+)", call.device.arch or "")
    if capability is not None and int(capability[1]) < 80:
        return f"{call.device.arch}; the CUDA kernels need compute capability 8.0 or newer"
    return None


def refused(kernel: type[Kernel], call: CallSpec) -> ValueError:
    """The error where a kernel is asked to serve a call that it has no plan for."""
    return ValueError(f"{kernel.__name__} refuses this call: {kernel.refusal(call)}")


def once(call: CallSpec, key: Hashable, find: Callable[[], T]) -> T:
    """What `find` gives, remembered with the call: choosing, building and binding a kernel ask for it in turn."""
    known: dict[Hashable, T] = call.__dict__.setdefault("_once", {})
    if key not in known:
        known[key] = find()
    return known[key]


def access_width(itemsize: int, alignments: Iterable[int], *, narrow: bool = True) -> int:
    """Bytes of an access: 16 where every address allows it, else 4 (if `narrow`), else `itemsize`.

    Args:
        itemsize: bytes of the least that is accessed at once, most often of an element.
        alignments: what each base address, stride and extent in bytes is a multiple of.
        narrow: whether 4 bytes are an option for smaller elements.
    """
    common = math.gcd(VECTOR_BYTES, *alignments)
    if common == VECTOR_BYTES:
        return VECTOR_BYTES
    return 4 if narrow and common % 4 == 0 else itemsize


def walk_geometry(
    sizes: Sequence[int], steps: Sequence[Sequence[int]], itemsizes: Sequence[int], axes: int
) -> tuple[int, ...]:
    """What `lang.walk` reads of a layout: for each axis, the innermost first, its size and the step of every operand.

    Args:
        sizes: of the axes, outermost first.
        steps: of each operand along the axes, in elements.
        itemsizes: bytes of an element of each operand.
        axes: that the kernel walks, as many or more; surplus ones have size 1.
    """
    geometry: list[int] = []
    for axis in reversed(range(len(sizes))):
        along = (operand[axis] * itemsize for operand, itemsize in zip(steps, itemsizes, strict=True))
        geometry += [sizes[axis], *along]
    return (*geometry, *[1, *[0] * len(steps)] * (axes - len(sizes)))


def sm_count(device: DeviceFacts) -> int:
    """Multiprocessors of the device, or a usual number."""
    return device.sm_count or _USUAL_SM_COUNT


def blocks_for(items: int, per_block: int) -> int:
    """Blocks for `items` pieces of work; 0 for none."""
    return min(-(-items // per_block), MAX_BLOCKS)
