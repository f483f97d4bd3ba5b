"""Gradient formulas: what an op class names in its attribute `gradient`, and what autograd makes of it.

    def product_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
        (grad,) = back.grads
        return {"a": ... if back.needed["a"] else None, "b": ...}

    class ProductFwdOp(Op):
        gradient = Gradient(product_gradient, saves=("a", "b"))

A formula computes with operators, so that it runs compiled, under a compiler and a second time. Gradients may come
expanded or strided, and what was saved is never written.

``backward()`` and `torch.autograd.grad` work eagerly and through a compiled function, `torch.func` eagerly. Inside
`torch.compile`, PyTorch 2.13 refuses `torch.func.grad` of any custom operator, its own included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tileops.ops.base import Op


@dataclass(frozen=True)
class Backward:
    """One backward pass through a call.

    Attributes:
        op: the op that was called, or an equal one.
        grads: gradient of each output that the call returned; None for one that nothing depends on.
        saved: the tensors that the formula asked for, by manifest name; None for one that was absent.
        shapes: shape of every input by name; None for an absent one.
        needed: by name, whether the gradient of an input is wanted.
    """

    op: Op
    grads: tuple[torch.Tensor | None, ...]
    saved: Mapping[str, torch.Tensor | None]
    shapes: Mapping[str, Sequence[int] | None]
    needed: Mapping[str, bool]


Formula = Callable[[Backward], Mapping[str, "torch.Tensor | None"]]


@dataclass(frozen=True)
class Gradient:
    """A formula and what it needs of the call.

    Attributes:
        formula: gradients by input name, each with the shape and dtype of its input; what it leaves out has none.
        saves: names of the inputs and outputs that it reads.
    """

    formula: Formula
    saves: tuple[str, ...] = ()


def autograd_functions(
    gradient: Gradient, names: Sequence[str], outputs: Sequence[str], find: Callable[[str], Op]
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """``setup_context`` and ``backward`` of a torch operator.

    Args:
        gradient: the formula.
        names: of the operator's tensors, in order.
        outputs: of its results, in order.
        find: the op for the text of a call.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.call = inputs
        results = output if isinstance(output, tuple) else (output,)
        known = {**dict(zip(names, tensors, strict=True)), **dict(zip(outputs, results, strict=True))}
        ctx.save_for_backward(*(known.get(name) for name in gradient.saves))
        ctx.shapes = [None if tensor is None else tensor.shape for tensor in tensors]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * (len(names) + 1)
        found = gradient.formula(
            Backward(
                op=find(ctx.call),
                grads=grads,
                saved=dict(zip(gradient.saves, ctx.saved_tensors, strict=True)),
                shapes=dict(zip(names, ctx.shapes, strict=True)),
                needed=dict(zip(names, ctx.needs_input_grad, strict=False)),
            )
        )
        return (*(found.get(name) for name in names), None)

    return setup_context, backward


def transformable(
    operator: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any],
) -> type[torch.autograd.Function]:
    """A torch operator as the kind of function that ``torch.func`` differentiates: it sees through no operator of a
    library, but through these, and maps over what they call.

    Args:
        operator: called with the tensors and the text of the call.
        setup_context: of the operator.
        backward: of the operator.
        jvp: called where a transform differentiates forwards, as the outer one of `torch.func.hessian` does.
    """

    class Transformable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(_Unwrapped(ctx), *grads)

    Transformable.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    Transformable.jvp = staticmethod(jvp)  # type: ignore[method-assign]
    return Transformable


class _Unwrapped:
    """A context whose saved tensors have memory. They may outlive their transform, as in what `torch.func.vjp` returns,
    in wrappers that torch's dispatcher sees through and a kernel does not.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = tuple(None if saved is None else saved.view_as(saved) for saved in ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)
