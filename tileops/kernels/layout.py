"""Layout arithmetic that the host side of several kernels shares: few loops out of many axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor seen through `target`, a shape that it broadcasts to: 0 along every stretched or
    added axis.
    """
    missing = len(target) - len(shape)
    padded = [0] * missing
    for size, stride, want in zip(shape, strides, target[missing:], strict=True):
        padded.append(0 if size == 1 and want != 1 else stride)
    return tuple(padded)


def coalesce(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merges neighbouring axes that every operand walks with one step, and drops axes of size one.

    Args:
        shape: sizes, outermost first.
        strides: for each operand its strides over `shape`, in elements.

    Returns:
        The smallest equivalent shape (at least one axis; ``(1,)`` for a single element) and each operand's
        strides over it, so that a contiguous call always comes out with one axis.
    """
    return _coalesce(tuple(shape), *map(tuple, strides))


# Choosing, identifying and binding a kernel ask for the same layouts in turn.
@lru_cache(maxsize=1024)
def _coalesce(shape: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    sizes: list[int] = []
    steps: list[list[int]] = []  # one list of per-operand steps for each kept axis
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        step = [operand[axis] for operand in strides]
        if sizes and all(outer == inner * size for outer, inner in zip(steps[-1], step, strict=True)):
            sizes[-1] *= size
            steps[-1] = step
        else:
            sizes.append(size)
            steps.append(step)
    if not sizes:
        return (1,), tuple((1,) for _ in strides)
    return tuple(sizes), tuple(tuple(step[operand] for step in steps) for operand in range(len(strides)))
