"""Addition."""

from __future__ import annotations

from typing import ClassVar

from tileops.kernels.elementwise.add_cpu import AddCpuKernel
from tileops.kernels.elementwise.add_cuda import AddCudaKernel
from tileops.kernels.elementwise.call_spec import AddCall, AddFwdInterface
from tileops.ops.base import Op
from tileops.ops.elementwise.gradient import add_gradient
from tileops.ops.facts import CallFacts
from tileops.ops.gradients import Gradient


class AddFwdOp(Op):
    """Addition with broadcasting: ``output = input + alpha * other``.

    Follows ``torch.add`` on operands of one dtype; low-precision floats are computed in float32 and rounded
    once.

    Args:
        alpha: factor of `other`; an integer where the tensors are integers.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(input, other)``

        - input: ``[*A]``, any strides.
        - other: ``[*B]``, dtype of `input`, any strides; the shapes broadcast.

        Returns `output`: the broadcast shape, dtype of `input`, contiguous.

    Raises:
        CheckError: shapes do not broadcast, dtypes differ, or `alpha` does not fit the dtype; the message
            names the declaration.
        DispatchError: no kernel serves the dtype on this device.

    Example:
        >>> y = AddFwdOp(alpha=2)(a, b)
    """

    kernel_types: ClassVar = {"cpu": AddCpuKernel, "cuda": AddCudaKernel}
    interfaces: ClassVar = {"add": AddFwdInterface}
    gradient = Gradient(add_gradient)

    def __init__(self, *, alpha: int | float = 1, target: str | None = None) -> None:
        self.alpha = alpha
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> AddCall:
        return AddCall(
            a=facts["input"], b=facts["other"], output=facts["output"], alpha=self.alpha, device=facts.device
        )
