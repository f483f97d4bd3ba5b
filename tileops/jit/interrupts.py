"""Work that Ctrl-C does not stop halfway."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def to_the_end(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What ``function(*args, **kwargs)`` returns or raises; an interrupt ends the wait for it, not the work.

    A signal handler runs in the main thread and may raise anywhere. Numba, whose import alone takes most of a second,
    does not survive that: what it was about to register is missing from then on. So the work is done in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    future: Future[_T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function, *args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=work, name="tileops compile").start()
    except RuntimeError:  # none can be started any more: the interpreter is ending
        return function(*args, **kwargs)
    return future.result()
