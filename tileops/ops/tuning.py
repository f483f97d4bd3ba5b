"""Where ops meet the tuner: which config a kernel is built with, and `Op.autotune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tileops.kernels.base import CallSpec, Config, Kernel

if TYPE_CHECKING:
    from tileops.ops.base import Op


def config_for(op: Op, interface: str, kernel_type: type[Kernel], call: CallSpec) -> Config:
    """The tile parameters that `kernel_type` is built with for `call`."""
    return kernel_type.default_config(call)


def autotune(op: Op, examples: tuple[Any, ...], calls: Any, options: dict[str, Any]) -> Any:
    raise NotImplementedError
