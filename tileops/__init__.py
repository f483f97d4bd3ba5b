"""TileOPs: operators for language models, written in Numba and compiled on first use.

    >>> from tileops.norm import RMSNormFwdOp
    >>> op = RMSNormFwdOp(normalized_shape=(4096,))
    >>> y = op(x, weight)

Importing the package loads neither Numba nor Optuna nor a CUDA library; the first use of an operator does.
"""

from __future__ import annotations

__version__ = "0.1.0"
