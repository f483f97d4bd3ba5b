"""Reading `spec/*.yaml`: which file holds a family, and the raw mapping of each entry.

A file is ``<family>.yaml`` or ``<family>_<shard>.yaml``, a flat non-empty mapping of operator names to
entries that all carry that family. Reading one family opens only its files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tileops.errors import ManifestError

SPEC_DIR = Path(__file__).parent / "spec"
TYPES_FILE = "types.yaml"


@dataclass(frozen=True)
class RawEntry:
    """One entry as YAML gives it.

    Attributes:
        name: the operator.
        family: its family, by the file name and the entry itself.
        file: the file's name.
        fields: the mapping.
    """

    name: str
    family: str
    file: str
    fields: dict[str, Any]


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_UNDER_WAY = object()


class _Builder:
    """Python values of a tree of YAML nodes; an anchored node is built once.

    Half the time of PyYAML's own constructor, and it refuses a key given twice, where that one keeps the last.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.built: dict[int, Any] = {}

    def build(self, node: Any) -> Any:
        if node.tag == _STRING:
            return node.value
        if node.tag not in _COLLECTIONS:
            return self.loader.construct_object(node, deep=True)
        found = self.built.get(id(node))
        if found is _UNDER_WAY:
            raise ManifestError(f"{_line(node)}: a value contains itself; write it out")
        if found is None:
            self.built[id(node)] = _UNDER_WAY
            is_list = type(node) is yaml.SequenceNode
            found = [self.build(item) for item in node.value] if is_list else self._mapping(node)
            self.built[id(node)] = found
        return found

    def _mapping(self, node: Any) -> dict[Any, Any]:
        seen: set[str] = set()
        merges = False
        for key, _ in node.value:
            if type(key) is not yaml.ScalarNode:
                raise ManifestError(f"{_line(key)}: a key is a name, not a list or a mapping")
            if key.value in seen:
                raise ManifestError(
                    f"{_line(key)}: the key {key.value!r} occurs twice in one mapping; keep one of them"
                )
            seen.add(key.value)
            merges |= key.tag == _MERGE
        if merges:
            self.loader.flatten_mapping(node)
        return {self.build(key): self.build(value) for key, value in node.value}


def _line(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"


def _tree(text: bytes) -> Any:
    """The Python values of a YAML document."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _Builder(loader).build(node)
    finally:
        loader.dispose()


def read_yaml(path: Path) -> Any:
    """Content of a YAML file.

    Raises:
        ManifestError: it cannot be read, or a key occurs twice in one mapping.
    """
    try:
        return _tree(path.read_bytes())
    except ManifestError as error:
        raise ManifestError(f"{path.name}: {error}") from None
    except yaml.YAMLError as error:
        raise ManifestError(f"{path.name}: not well-formed YAML: {' '.join(str(error).split())}") from None
    except (OSError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ManifestError(f"{path.name}: cannot be read: {error}") from None


def spec_files(directory: Path = SPEC_DIR) -> list[Path]:
    """Every spec file, sorted by name."""
    return sorted(path for path in directory.glob("*.yaml") if path.name != TYPES_FILE)


def family_files(family: str, directory: Path = SPEC_DIR) -> list[Path]:
    """Files that may hold entries of `family`, by name."""
    return [path for path in spec_files(directory) if _fits(path, family)]


def read_file(path: Path) -> list[RawEntry]:
    """The entries of one file.

    Raises:
        ManifestError: the file is empty, no mapping of operators, mixes families, or its name does not fit
            its family.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ManifestError(f"{path.name}: a spec file is a non-empty mapping of operator names to entries")
    entries = []
    for name, fields in content.items():
        if not isinstance(name, str):
            raise ManifestError(f"{path.name}: the key {name!r} is no operator name")
        if not isinstance(fields, dict):
            raise ManifestError(f"{path.name}: {name}: an entry is a mapping of fields")
        family = fields.get("family")
        if not isinstance(family, str):
            raise ManifestError(f"{path.name}: {name}: family: the entry names no family; write the one of the file")
        if not _fits(path, family):
            raise ManifestError(
                f"{path.name}: {name}: family: {family!r} does not fit the file name; move the "
                f"entry to {family}.yaml "
                f"or {family}_<shard>.yaml"
            )
        entries.append(RawEntry(name, family, path.name, fields))
    families = sorted({entry.family for entry in entries})
    if len(families) > 1:
        raise ManifestError(f"{path.name}: the file mixes the families {', '.join(families)}; give each its own file")
    return entries


def merge(files: Iterator[list[RawEntry]]) -> dict[str, RawEntry]:
    """Entries of several files by name.

    Raises:
        ManifestError: two files hold the same operator.
    """
    merged: dict[str, RawEntry] = {}
    for entries in files:
        for entry in entries:
            if entry.name in merged:
                raise ManifestError(
                    f"{entry.file}: {entry.name}: the operator is also in "
                    f"{merged[entry.name].file}; keep one of the entries"
                )
            merged[entry.name] = entry
    return merged


@cache
def _cached_file(path: Path) -> tuple[RawEntry, ...]:
    return tuple(read_file(path))


def read_family(family: str) -> dict[str, RawEntry]:
    """Raw entries of one family of the installed manifest."""
    files = family_files(family)
    found = merge(list(_cached_file(path)) for path in files)
    return {name: entry for name, entry in found.items() if entry.family == family}


def read_all() -> dict[str, RawEntry]:
    """Raw entries of the whole installed manifest, in file order."""
    return merge(list(_cached_file(path)) for path in spec_files())


def find(name: str) -> RawEntry | None:
    """The raw entry of `name`, or None. Only its own lines are parsed, or its whole file where these do not stand
    alone, as with an alias of an anchor in another entry.
    """
    block = re.compile(rb"^" + re.escape(name.encode()) + rb"[ ]*:.*?(?=^[^\s#]|\Z)", re.MULTILINE | re.DOTALL)
    for path in spec_files():
        found = block.search(_text(path))
        if found is None:
            continue
        try:
            fields = _tree(found.group())[name]
            if _fits(path, fields["family"]):
                return RawEntry(name, fields["family"], path.name, fields)
        except (ManifestError, yaml.YAMLError, KeyError, TypeError, ValueError):
            pass  # read with its whole file, which says what is wrong
        for entry in _cached_file(path):
            if entry.name == name:
                return entry
    return None


@cache
def implemented_names(family: str) -> tuple[str, ...]:
    """Names of the entries of a family that are implemented, sorted. Reads the text only: nothing is parsed."""
    entry = re.compile(rb"^([A-Za-z]\w*)[ ]*:.*?(?=^[^\s#]|\Z)", re.MULTILINE | re.DOTALL)
    implemented = re.compile(rb"^\s+status:\s*implemented\s*(#.*)?$", re.MULTILINE)
    found = (block for path in family_files(family) for block in entry.finditer(_text(path)))
    return tuple(sorted(block[1].decode() for block in found if implemented.search(block[0])))


def _fits(path: Path, family: object) -> bool:
    """Whether a file may hold entries of a family."""
    return isinstance(family, str) and (path.stem == family or path.stem.startswith(f"{family}_"))


@cache
def _text(path: Path) -> bytes:
    return path.read_bytes()


def clear_caches(*more: Callable[[], None]) -> None:
    """Forgets every file that was read; for tests and for editors that reload."""
    _cached_file.cache_clear()
    _text.cache_clear()
    implemented_names.cache_clear()
    for clear in more:
        clear()
