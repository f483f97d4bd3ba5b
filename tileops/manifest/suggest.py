"""Did you mean: the known name that a misspelt one is closest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: object, known: Iterable[object]) -> str:
    """``" (did you mean 'x'?)"`` for the closest of `known`, or "" where none is close. Known names are taken in
    sorted order, so that the answer does not depend on theirs.
    """
    names = sorted({item for item in known if isinstance(item, str)})
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.77) if isinstance(name, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""
