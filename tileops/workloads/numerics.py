"""When a result counts as right: tolerances by dtype, comparison with a float64 reference, negative controls.

The bounds are those of one rounding to the result's dtype with room for a different order of summation, so
that a kernel which computes in float32 and rounds once passes and one that rounds twice in sequence or loses
an element does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

#: rtol = atol of a comparison with the reference; every dtype not listed is compared exactly.
TOLERANCES: dict[torch.dtype, float] = {
    torch.float16: 1e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
}


def tolerance(dtype: torch.dtype) -> float:
    """rtol = atol for results of `dtype`; 0.0 where they must be equal."""
    return TOLERANCES.get(dtype, 0.0)


@dataclass(frozen=True)
class Mismatch:
    """Where a result left the reference, in words.

    Attributes:
        count: elements outside the tolerance.
        total: elements compared.
        index: coordinates of the worst element.
        actual: its value.
        expected: the reference's value.
        note: what kind of difference it is.
    """

    count: int
    total: int
    index: tuple[int, ...]
    actual: float
    expected: float
    note: str

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.total} elements {self.note}; worst at {list(self.index)}: "
            f"{self.actual!r}, the reference says {self.expected!r}"
        )


def compare(
    actual: torch.Tensor, expected: torch.Tensor, *, rtol: float | None = None, atol: float | None = None
) -> Mismatch | None:
    """Compares a result with its reference, elementwise ``|actual - expected| <= atol + rtol |expected|``.

    NaN must stand where the reference has NaN and infinities must be equal. A finite reference beyond the
    range of the result's dtype is first rounded to it (so it may become an infinity).

    Args:
        actual: the result, of any dtype.
        expected: the reference, usually float64, of the same shape.
        rtol: relative bound; by default `tolerance` of the result's dtype.
        atol: absolute bound; likewise.

    Returns:
        None if the result is right, else what is wrong with it.

    Raises:
        ValueError: the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shape {list(actual.shape)} of the result, {list(expected.shape)} of the reference")
    if actual.numel() == 0:
        return None
    bound = tolerance(actual.dtype)
    rtol = bound if rtol is None else rtol
    atol = bound if atol is None else atol
    if not (actual.is_floating_point() or actual.is_complex()):
        wrong = actual != expected.to(actual.dtype)
        return _worst(wrong, wrong.double(), actual, expected, "differ") if bool(wrong.any()) else None

    got, want = _as_real(actual), _wanted(actual, expected)
    special = ~(got.isfinite() & want.isfinite())
    equal_special = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(special, torch.where(equal_special, 0.0, torch.inf), (got - want).abs())
    limit = torch.where(special, 0.0, atol + rtol * want.abs().nan_to_num(posinf=0.0))
    wrong = error > limit
    if not bool(wrong.any()):
        return None
    return _worst(wrong, error - limit, got, want, f"outside rtol={rtol:g}, atol={atol:g}")


def _as_real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.to(torch.complex128)) if x.is_complex() else x.double()


def _wanted(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """`expected` in float64; what the dtype of `actual` cannot represent is no error, and rounded to it."""
    want, rounded = _as_real(expected), _as_real(expected.to(actual.dtype))
    return torch.where(want.isfinite() & ~rounded.isfinite(), rounded, want)


def _worst(
    wrong: torch.Tensor, excess: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor, note: str
) -> Mismatch:
    at = int(torch.where(wrong, excess, -torch.inf).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), wrong.shape))
    return Mismatch(int(wrong.sum()), wrong.numel(), index, actual[index].item(), expected[index].item(), note)


def normalized_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """``||actual - expected|| / ||expected||`` in float64; 0.0 for two empty or two zero tensors.

    Infinities and NaN that agree count as no error, others make the result one. What the dtype of `actual` cannot hold
    is infinite.
    """
    got, want = _as_real(actual), _wanted(actual, expected)
    agree = (got == want) | (got.isnan() & want.isnan())
    norm = float(torch.where(want.isfinite(), want, 0.0).norm())
    error = float(torch.where(agree, 0.0, got - want).norm())
    return error / norm if norm else error


def ulp_error(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """``|actual - expected|`` in units in the last place of `actual`'s dtype at `expected`, elementwise in
    float64.

    A correctly rounded result is off by 0.5 at most. The unit of values below the smallest normal number is
    that of the subnormals; infinities that agree count as no error.
    """
    info = torch.finfo(actual.dtype)
    got, want = actual.double(), expected.double()
    _, exponent = torch.frexp(want.abs().clamp(info.tiny, info.max))
    unit = torch.ldexp(torch.full_like(want, info.eps), exponent - 1)
    return torch.where(got == want, 0.0, (got - want).abs() / unit)


def negative_controls(result: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Wrong results that a sound check of `result` has to reject, with what is wrong about them.

    A control that happens to equal `result` (a constant tensor permuted, say) is left out.
    """
    flat = result.reshape(-1)
    candidates = (
        ("zeroed", torch.zeros_like(flat)),
        ("shifted by one element", flat.roll(1)),
        ("last element lost", torch.cat([flat[:-1], torch.zeros_like(flat[-1:])])),
    )
    for name, wrong in candidates:
        if not torch.equal(wrong, flat):
            yield name, wrong.reshape(result.shape)
