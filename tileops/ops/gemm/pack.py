"""Packed weights for matrix multiplication."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

from tileops import jit
from tileops.errors import CheckError
from tileops.jit import Program, parallel
from tileops.kernels.base import DTYPES, FLOAT_DTYPES
from tileops.kernels.gemm import gemm_cpu, paths
from tileops.ops.dtypes import name_of
from tileops.ops.gemm import arena

_SHORT = {name: DTYPES[name][1] for name in FLOAT_DTYPES}
#: Bytes of a weight that one thread packs in a nanosecond; decides when two threads pay.
_BYTES_PER_NS = 5.0


class Packing(NamedTuple):
    """Packed bytes and the name of their layout, which belong together while another thread refreshes the pack."""

    layout: str
    buffer: torch.Tensor


class PackedWeight:
    """A copy of a weight in the layout that the multiplication streams fastest. Made by `pack`.

    While this object lives, ``GemmFwdOp()(a, weight)`` called with the very tensor object that was packed
    reads the copy. The copy is trusted as long as the tensor has the address, shape, strides and version
    counter that it had. In-place operations that torch counts (``weight.add_(1)``, an optimizer step) make it
    stale: calls then read the tensor itself until `refresh`. Writes that torch does *not* count stay
    unnoticed and need `refresh`: through ``weight.data``, through a NumPy view or another tensor over the
    same memory made by ``from_numpy``, and every write to a tensor made under ``torch.inference_mode()``
    (such tensors have no version counter).

    A float32 weight all of whose values are finite bfloat16, as in a bfloat16 checkpoint loaded in float32, is packed
    as bfloat16: that loses nothing and takes half the memory and time. `refresh` chooses again.

    `copy.deepcopy`, pickling and `torch.save` take the weight along and pack it again on the other side, so a
    module that holds a weight and its pack comes back with both. A pack alone comes back without a weight, since
    nothing else holds it.

    Attributes:
        trans_b: whether the weight is ``[N, K]`` (True) or ``[K, N]``.
        shape: shape of the weight.
        dtype: dtype of the weight.
    """

    def __init__(self, weight: torch.Tensor, trans_b: bool, huge_pages: Literal["now", "later"] = "now") -> None:
        self._weight = weakref.ref(weight)
        self.trans_b = trans_b
        self.shape = tuple(weight.shape)
        self.dtype = weight.dtype
        self._huge_pages = huge_pages
        self._state: tuple[Any, ...] = ()
        self._packing: Packing | None = None
        self.refresh()

    def refresh(self) -> None:
        """Packs the weight's present values again.

        Raises:
            RuntimeError: the weight no longer exists, or its shape or dtype changed.
        """
        weight = self._weight()
        if weight is None:
            raise RuntimeError("PackedWeight.refresh: the packed tensor no longer exists; pack the new one")
        if tuple(weight.shape) != self.shape or weight.dtype != self.dtype:
            raise RuntimeError(
                f"PackedWeight.refresh: the tensor was {self.dtype}{list(self.shape)} and is now "
                f"{weight.dtype}{list(weight.shape)}; call pack again"
            )
        state = _state(weight)
        before = self._packing
        self._packing = _pack(weight, self.trans_b, before, self._huge_pages == "now")
        if self._packing is not before and self._huge_pages == "later":
            arena.gather(self.buffer, now=False)
        self._state = state

    def use_huge_pages(self) -> None:
        """Moves a pack that was made with ``huge_pages="later"`` into huge pages, where the system has some. Calls that
        use it meanwhile wait. The system does the same by itself, some pages every ten seconds.
        """
        arena.gather(self.buffer, now=True)

    @property
    def packing(self) -> Packing:
        """The packed bytes with their layout."""
        assert self._packing is not None
        return self._packing

    @property
    def buffer(self) -> torch.Tensor:
        """The packed bytes."""
        return self.packing.buffer

    @property
    def layout(self) -> str:
        """Name of the layout."""
        return self.packing.layout

    @property
    def weight(self) -> torch.Tensor | None:
        """The packed tensor, or None once it is gone."""
        return self._weight()

    @property
    def nbytes(self) -> int:
        """Bytes that the pack holds."""
        return self.buffer.numel()

    @property
    def is_current(self) -> bool:
        """Whether calls with the weight use the pack: the weight lives, is as it was, and was not packed again."""
        weight = self._weight()
        return weight is not None and find_pack(weight, self.trans_b) is self

    def __copy__(self) -> PackedWeight:
        return self  # two packs of one tensor would be of no use

    def __reduce__(self) -> tuple[Any, ...]:
        weight = self._weight()
        if weight is None:
            raise TypeError(
                f"{self!r} cannot be copied or pickled: the packed tensor no longer exists; drop the pack, and pack "
                "the weight that took its place"
            )
        return _pack_again, (weight, self.trans_b, self._huge_pages)

    def __repr__(self) -> str:
        state = "current" if self.is_current else "stale"
        return f"PackedWeight({self.dtype}{list(self.shape)}, {self.layout}, {self.nbytes} bytes, {state})"


# By id of the weight, so that a lookup costs a dictionary access and keeps nothing alive. An id that a new
# tensor inherits is recognised because the pack's weak reference then leads elsewhere.
_packs: dict[int, weakref.ref[PackedWeight]] = {}


def pack(weight: torch.Tensor, *, trans_b: bool = True, huge_pages: Literal["now", "later"] = "now") -> PackedWeight:
    """Packs a weight for `GemmFwdOp` on the CPU; keep the result for as long as the pack is to be used.

    Args:
        weight: ``[N, K]`` (or ``[K, N]``), float32, bfloat16 or float16, on the CPU, any strides.
        trans_b: the `trans_b` of the ops that will use it: True where `weight` is ``[N, K]``.
        huge_pages: "now" takes the memory in huge pages, which calls stream up to a fifth faster; "later" packs into
            small pages, which start sooner where huge ones are dear (in virtual machines they may take milliseconds
            each), and leaves it to the system, or to `PackedWeight.use_huge_pages`, to make them huge.

    Returns:
        The pack. It holds its own copy (N rounded up to 64, K to 32; in bfloat16 where that holds every value) and a
        weak reference to `weight`.

    Raises:
        CheckError: not a dense matrix of numbers on the CPU, another dtype, `trans_b` is not a bool, or `huge_pages`
            is something else.

    Example:
        >>> packed = tileops.gemm.pack(linear.weight)
        >>> y = GemmFwdOp()(x, linear.weight)       # uses the pack
    """
    _check(weight, trans_b)
    if huge_pages not in ("now", "later"):
        raise CheckError("tileops.gemm.pack", "huge_pages", f"got {huge_pages!r}, expected 'now' or 'later'")
    packed = PackedWeight(weight, trans_b, huge_pages)
    key = id(weight)
    reference = weakref.ref(packed, lambda gone: _packs.pop(key, None) if _packs.get(key) is gone else None)
    _packs[key] = reference
    return packed


def find_pack(weight: torch.Tensor, trans_b: bool) -> PackedWeight | None:
    """The living, current pack of this very tensor object, or None."""
    reference = _packs.get(id(weight))
    if reference is None:
        return None
    packed = reference()
    if packed is None or packed.trans_b != trans_b or packed._weight() is not weight:
        return None
    return packed if packed._state == _state(weight) else None


def packs() -> Iterator[PackedWeight]:
    """The living packs (for ``tileops doctor``)."""
    for reference in list(_packs.values()):
        packed = reference()
        if packed is not None:
            yield packed


def programs(dtype: str) -> tuple[Program, ...]:
    """What `pack` compiles for weights of a dtype."""
    short = _SHORT[dtype]
    found = [gemm_cpu.pack_program(short, layout) for layout in paths.packed_layouts(dtype)]
    if len(found) > 1:
        found.append(gemm_cpu.narrowing_program())
    return *found, gemm_cpu.dense_program(short, short)


def _pack_again(weight: torch.Tensor, trans_b: bool, huge_pages: Literal["now", "later"] = "now") -> PackedWeight:
    """What a copied or unpickled pack is made by."""
    return pack(weight, trans_b=trans_b, huge_pages=huge_pages)


# So that ``torch.load`` takes checkpoints with packs; the function can do no more than pack a tensor.
torch.serialization.add_safe_globals([_pack_again])


def _check(weight: Any, trans_b: Any) -> None:
    def reject(problem: str, declaration: str = "weight") -> None:
        raise CheckError("tileops.gemm.pack", declaration, problem)

    if not isinstance(weight, torch.Tensor):
        reject(f"got {_shown(weight)}, expected a torch.Tensor; pass the tensor that the calls will get")
    if not isinstance(trans_b, bool):
        reject(f"got {_shown(trans_b)}, expected True (the weight is [N, K]) or False (it is [K, N])", "trans_b")
    if weight.is_nested:
        reject("a nested tensor, expected a matrix; pack its components, or torch.nested.to_padded_tensor()")
    if weight.layout != torch.strided:
        reject(f"layout {weight.layout}, expected torch.strided; pack weight.to_dense()")
    if type(weight).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        reject(f"a {type(weight).__name__} has no memory of its own to pack; pack the plain tensor that it stands for")
    if weight.ndim != 2:
        reject(f"shape {list(weight.shape)}, expected a matrix: [N, K], or [K, N] with trans_b=False; reshape it")
    if weight.device.type != "cpu":
        reject(f"device {weight.device}, expected cpu: packs serve the CPU kernels; elsewhere calls need none")
    if name_of(weight.dtype) not in _SHORT:
        reject(f"dtype {weight.dtype}, expected float32, bfloat16 or float16; convert with weight.to(...)")
    if weight.is_neg():
        reject("a view that negates its elements when read; pack weight.resolve_neg()")


def _shown(value: Any) -> str:
    """A value of a wrong type, for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}" if value is not None else "None"


def _state(weight: torch.Tensor) -> tuple[Any, ...]:
    """What changes when the tensor is written or replaced, as far as torch tells."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.shape, weight.stride()


def _pack(weight: torch.Tensor, trans_b: bool, into: Packing | None, huge: bool) -> Packing:
    """Packs a weight, into the memory of its last packing if that had the layout that is right now."""
    (n, k), (n_step, k_step) = weight.shape, weight.stride()
    if not trans_b:
        n, k, n_step, k_step = k, n, k_step, n_step
    dtype = name_of(weight.dtype)
    short, size = _SHORT[dtype], weight.element_size()
    layout = paths.packed_layouts(dtype)[0]
    if n == 0 or k == 0:
        return Packing(layout, arena.allocate(0))
    limit = parallel.limit(n * k * size / _BYTES_PER_NS)
    source, row_bytes, copy = weight.data_ptr(), n_step * size, None
    if k > 1 and k_step != 1:
        copy = torch.empty((n, k), dtype=weight.dtype, device="cpu")
        row_bytes = k * size
        entry = jit.get_entry(gemm_cpu.dense_program(short, short))
        lanes = jit.cpu_target().lanes
        entry.launch(
            parallel.team(limit), -(-n // lanes), source, n_step * size, k_step * size, n, k, copy.data_ptr(), row_bytes
        )
        source = copy.data_ptr()
    if short == "f32" and _is_bf16(limit, source, row_bytes, n, k):
        layout, size = paths.NARROWED, 2
    panels, stride = gemm_cpu.packed_panels(n), gemm_cpu.panel_stride(size, k)
    if into is None or into.layout != layout:
        into = Packing(layout, arena.allocate(panels * stride, huge))
    entry = jit.get_entry(gemm_cpu.pack_program(short, layout))
    entry.launch(parallel.team(limit), panels, source, row_bytes, n, k, into.buffer.data_ptr(), stride)
    return into


def _is_bf16(limit: int, source: int, row_bytes: int, n: int, k: int) -> bool:
    """Whether every element of a float32 matrix with dense rows is a finite bfloat16."""
    beyond = torch.zeros(1, dtype=torch.int64, device="cpu")
    entry = jit.get_entry(gemm_cpu.narrowing_program())
    entry.launch(parallel.team(limit), n, source, row_bytes, k, beyond.data_ptr())
    return not beyond.item()


__all__ = ["PackedWeight", "Packing", "find_pack", "pack", "packs"]
