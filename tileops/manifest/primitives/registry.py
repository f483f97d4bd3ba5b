"""How built-in members of the language are declared, and the three closed sets that they form.

A *primitive* is a function of expressions, a *generator* makes the values of a metadata tensor, a *predicate*
states what such values must satisfy. Each declares the kinds of its arguments, the kind (or rank) of its
result, and its domain by raising `DomainError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tileops.manifest import kinds as k


class DomainError(ValueError):
    """An argument lies outside a member's domain. The caller adds the name of the declaration."""


@dataclass(frozen=True)
class Formal:
    """One argument of a member.

    Attributes:
        name: its name, also as a keyword.
        kind: the kind that an argument must fit.
        required: whether it must be given.
        keyword: whether it is given by name only.
        tensor: the argument names a metadata tensor, whose contents are passed.
        natural: a negative integer lies outside the domain. Its kind may be Int, so that parameters are accepted.
    """

    name: str
    kind: k.Kind
    required: bool = True
    keyword: bool = False
    tensor: bool = False
    natural: bool = False


def count(name: str) -> Formal:
    """An argument that is a number of things: an integer that is not negative."""
    return Formal(name, k.INT, natural=True)


@dataclass(frozen=True)
class Member:
    """What primitives, generators and predicates have in common.

    Attributes:
        name: as written in an expression, with the family prefix of a domain member.
        function: the one implementation.
        formals: its arguments, in order.
        variadic: further positional arguments of the last formal's kind are accepted.
    """

    name: str
    function: Callable[..., Any]
    formals: tuple[Formal, ...]
    variadic: bool = False

    def bind(self, positional: Sequence[k.Kind], keywords: dict[str, k.Kind]) -> list[k.Kind]:
        """Checks argument kinds against the formals and returns them in order.

        Raises:
            DomainError: wrong number, unknown keyword or wrong kind; the text names the formal.
        """
        places = [formal for formal in self.formals if not formal.keyword]
        if len(positional) > len(places) and not self.variadic:
            raise DomainError(f"{self.name} takes {len(places)} positional arguments, got {len(positional)}")
        given: list[tuple[Formal, k.Kind]] = []
        for position, kind in enumerate(positional):
            given.append((places[min(position, len(places) - 1)], kind))
        by_name = {formal.name: formal for formal in self.formals}
        named = {formal.name for formal, _ in given}
        for name, kind in keywords.items():
            if name not in by_name:
                raise DomainError(f"{self.name} has no argument {name!r}; it has {', '.join(by_name)}")
            if name in named:
                raise DomainError(f"{self.name} got {name!r} twice")
            given.append((by_name[name], kind))
            named.add(name)
        missing = [formal.name for formal in self.formals if formal.required and formal.name not in named]
        if missing:
            raise DomainError(f"{self.name} misses {', '.join(missing)}")
        for formal, kind in given:
            if not k.fits(kind, formal.kind):
                raise DomainError(f"{formal.name} of {self.name} must be of kind {formal.kind}, got {kind}")
        return [kind for _, kind in given]


@dataclass(frozen=True)
class Primitive(Member):
    """A function of the expression language. `result` may depend on the argument kinds."""

    result: k.Kind | Callable[[list[k.Kind]], k.Kind] = k.INT

    def result_kind(self, arguments: list[k.Kind]) -> k.Kind:
        """Kind of a call with arguments of these kinds."""
        return self.result if isinstance(self.result, k.Kind) else self.result(arguments)


@dataclass(frozen=True)
class Generator(Member):
    """Makes the contents of a metadata tensor. Random ones take a `numpy.random.Generator` as their first
    argument.

    Attributes:
        rank: of the result; None where it follows the shape argument.
        random: draws seeded random values.
    """

    rank: int | None = 1
    random: bool = False


@dataclass(frozen=True)
class Predicate(Member):
    """States a fact of a metadata tensor's contents, which are its first argument, before `formals`.

    Attributes:
        rank: of the tensor that it reads; None for an elementwise bound.
    """

    rank: int | None = 1


def _within(name: str, formals: tuple[Formal, ...], function: Callable[..., Any], skipped: int) -> Callable[..., Any]:
    """`function` with the domain of its natural arguments. Symbolic sizes are never negative and pass."""
    naturals = {formal.name: position + skipped for position, formal in enumerate(formals) if formal.natural}
    if not naturals:
        return function

    @wraps(function)
    def checked(*positional: Any, **named: Any) -> Any:
        for formal, position in naturals.items():
            value = positional[position] if position < len(positional) else named.get(formal, 0)
            if isinstance(value, int) and value < 0:
                raise DomainError(f"{formal} of {name} must not be negative, got {value}")
        return function(*positional, **named)

    return checked


PRIMITIVES: dict[str, Primitive] = {}
GENERATORS: dict[str, Generator] = {}
PREDICATES: dict[str, Predicate] = {}


def primitive(
    name: str, *formals: Formal, result: k.Kind | Callable[[list[k.Kind]], k.Kind], variadic: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as a primitive."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PRIMITIVES[name] = Primitive(name, _within(name, formals, function, 0), formals, variadic, result)
        return function

    return register


def generator(
    name: str, *formals: Formal, rank: int | None = 1, random: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as a generator."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        checked = _within(name, formals, function, int(random))
        GENERATORS[name] = Generator(name, checked, formals, False, rank, random)
        return function

    return register


def predicate(name: str, *formals: Formal, rank: int | None = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as a predicate."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PREDICATES[name] = Predicate(name, _within(name, formals, function, 1), formals, False, rank)
        return function

    return register
