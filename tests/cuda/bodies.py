"""Device bodies that only the tests compile."""

from __future__ import annotations

from collections.abc import Callable


def wrong() -> Callable[..., None]:
    """A body that no compiler can type."""

    def kernel(x):  # type: ignore[no-untyped-def]
        x.no_such_attribute()

    return kernel
