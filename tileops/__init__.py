"""TileOPs: operators for language models, written in Numba and compiled on first use.

    >>> from tileops.norm import RMSNormFwdOp
    >>> op = RMSNormFwdOp(normalized_shape=(4096,))
    >>> y = op(x, weight)

Importing the package loads neither Numba nor Optuna nor a CUDA library; the first use of an operator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileops.ops.recording import record_calls as record
    from tileops.ops.warming import warm

__all__ = ["__version__", "record", "warm"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The package itself must load neither torch nor anything behind it.
    if name == "warm":
        from tileops.ops.warming import warm

        return warm
    if name == "record":
        from tileops.ops.recording import record_calls

        return record_calls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
