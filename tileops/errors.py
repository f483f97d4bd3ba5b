"""Every error and warning that TileOPs raises on purpose.

A message names the operator, the declaration that failed, the values seen, and ends with what to do about it.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

#: Packages whose frames say nothing to the reader of a warning.
_MACHINERY = frozenset({"tileops", "torch", "importlib", "contextlib", "functools", "threading", "typer"})


class TileOpsError(Exception):
    """Base of all errors raised by TileOPs."""


class TileOpsWarning(UserWarning):
    """Base of all warnings issued by TileOPs."""


class ManifestError(TileOpsError, ValueError):
    """A manifest entry is not well-formed; the message names file, entry and field."""


class CheckError(TileOpsError, ValueError):
    """A construction parameter or a call violates a declaration of the operator's manifest entry.

    Attributes:
        op: name of the operator.
        declaration: the declaration that failed, as written in the entry (for example ``inputs.x.dtype``).
    """

    def __init__(self, op: str, declaration: str, message: str) -> None:
        super().__init__(f"{op}: {declaration}: {message}")
        self.op = op
        self.declaration = declaration

    def __reduce__(self) -> tuple:
        return _rebuild_check_error, (self.op, self.declaration, str(self))


def _rebuild_check_error(op: str, declaration: str, text: str) -> CheckError:
    prefix = f"{op}: {declaration}: "
    return CheckError(op, declaration, text.removeprefix(prefix))


class OpNotAvailableError(TileOpsError, RuntimeError):
    """No in-tree kernel of the operator runs on the device of the call."""


class DispatchError(TileOpsError, ValueError):
    """No kernel serves this call, or several do and none is preferred; the message lists every refusal."""


class BackendError(TileOpsError, RuntimeError):
    """A third-party target broke the backend protocol."""


class UnknownTargetError(BackendError):
    """The named target is not registered."""


class AmbiguousTargetError(BackendError):
    """Several registered targets claim the device and none was chosen."""


class KernelCompileError(TileOpsError, RuntimeError):
    """A kernel did not compile. Remembered for the life of the process: the same build raises at once."""


class ColdKernelError(TileOpsError, RuntimeError):
    """A kernel is not in any cache and compiling is forbidden (``TILEOPS_JIT=forbid``), or a CUDA graph is captured.

    The message names the key and the fields in which the nearest stored key differs.
    """


class LaunchError(TileOpsError, RuntimeError):
    """A kernel could not be launched."""


class SettingsError(TileOpsError, ValueError):
    """An environment variable has a value that cannot be used; the message names both."""


class TuningError(TileOpsError, RuntimeError):
    """Every candidate of a tuning run failed; the message gives the first three causes."""


class BackwardError(TileOpsError, NotImplementedError):
    """``backward()`` reached an operator that has no gradient formula."""


class CacheWarning(TileOpsWarning):
    """The kernel cache cannot be used as configured; results stay right, kernels are compiled again."""


class LauncherWarning(TileOpsWarning):
    """No parallel launcher was found; kernels run on one thread."""


class PerformanceWarning(TileOpsWarning):
    """Something works, but in a way that costs time at each call."""


def warn(message: str, category: type[Warning]) -> None:
    """Issues a warning at the line of the caller's code that led here, however deep inside TileOPs it arises."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame):
        frame = frame.f_back
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )


def _is_machinery(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in _MACHINERY or frame.f_code.co_filename.startswith("<tileops")
