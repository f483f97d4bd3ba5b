"""The built-in members of the language: primitives, generators and predicates, each a closed set.

`PRIMITIVES`, `GENERATORS` and `PREDICATES` map a member's name to its declaration; the docstring of a
member's function says what it computes. Adding a member takes a registration here and a test.
"""

from __future__ import annotations

from tileops.manifest.primitives import attention, general, generators, moe, predicates
from tileops.manifest.primitives.registry import (
    GENERATORS,
    PREDICATES,
    PRIMITIVES,
    DomainError,
    Formal,
    Generator,
    Member,
    Predicate,
    Primitive,
)

__all__ = [
    "GENERATORS",
    "PREDICATES",
    "PRIMITIVES",
    "DomainError",
    "Formal",
    "Generator",
    "Member",
    "Predicate",
    "Primitive",
    "attention",
    "general",
    "generators",
    "moe",
    "predicates",
]
