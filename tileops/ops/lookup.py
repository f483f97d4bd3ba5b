"""Operators that a program asks for by name before anything made their class.

Classes are made, and torch operators defined, when a name is first used. A program that another process exported, and
a graph that a compiler kept, know nothing but ``torch.ops.tileops.<name>``: where any family has been imported, every
implemented operator is found under it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch

from tileops import manifest


class _Defining(threading.local):
    """Whether this thread is defining an operator, which torch looks up first: it is not there yet."""

    now = False


_defining = _Defining()


def define(library: torch.library.Library, schema: str) -> None:
    """Defines an operator of this package."""
    _defining.now = True
    try:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    finally:
        _defining.now = False


def class_named(name: str) -> Any:
    """The class of an implemented operator, made if it has not been; None where there is none of that name."""
    for family, found in _implemented():
        if found == name:
            return getattr(import_module(f"tileops.ops.{family}"), name)
    return None


def _implemented() -> Iterator[tuple[str, str]]:
    """Family and class name of every implemented operator; makes no class."""
    for module in iter_modules(import_module("tileops.ops").__path__):
        if module.ispkg:
            for name in manifest.implemented_names(module.name):
                yield module.name, name


def _make_owners(operator: str) -> bool:
    """Makes the classes to which a torch operator of this name may belong; False where there are none."""
    from tileops.ops.dispatch import operator_name

    # The operator of an effect branch is named after the class and the effect.
    owners = [name for _, name in _implemented() if f"{operator}_".startswith(f"{operator_name(name)}_")]
    for name in owners:
        class_named(name)
    return bool(owners)


class _Operators(type(torch.ops.tileops)):  # type: ignore[misc]
    """``torch.ops.tileops``, with operators that are defined when they are asked for."""

    #: Operators name the module of their namespace, and are looked up there.
    __module__ = type(torch.ops.tileops).__module__

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if _defining.now or name.startswith("_") or not _make_owners(name):
                raise
        return super().__getattr__(name)


def install() -> None:
    """Has torch find operators that are not defined yet."""
    torch.ops.tileops.__class__ = _Operators
