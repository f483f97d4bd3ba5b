"""Operators as the command line sees them."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tileops import manifest
from tileops.cli.console import usage_error

if TYPE_CHECKING:
    from tileops.manifest import Entry


def find_entry(name: str) -> Entry:
    """The manifest entry of `name`, which may lack its suffix (``Gemm``, ``GemmFwd``) and be in any case.

    Raises:
        typer.BadParameter: there is none; the message suggests the closest names.
    """
    entries = {entry.name: entry for entry in manifest.load_all().values()}
    for candidate in (name, f"{name}FwdOp", f"{name}Op"):
        for known, entry in entries.items():
            if known.lower() == candidate.lower():
                return entry
    close = get_close_matches(name, entries, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; `tileops ops` lists them all"
    raise usage_error(f"no operator {name!r}{hint}")


def entries(family: str | None = None) -> list[Entry]:
    """Every entry, or those of one family, by name."""
    found = sorted(manifest.load_all().values(), key=lambda entry: (entry.family, entry.name))
    if family is None:
        return found
    families = sorted({entry.family for entry in found})
    if family not in families:
        raise usage_error(f"no family {family!r}; there are {', '.join(families)}")
    return [entry for entry in found if entry.family == family]


def op_class(entry: Entry) -> Any | None:
    """The operator's class, or None where it does not exist yet."""
    module = f"tileops.{entry.family}"
    return getattr(import_module(module), entry.name, None) if find_spec(module) is not None else None


def devices(entry: Entry) -> list[str]:
    """Kinds of device for which in-tree kernels exist."""
    cls = op_class(entry)
    if cls is None:
        return []
    return sorted({device for kernel in cls.kernel_types.values() for device in kernel.devices})
