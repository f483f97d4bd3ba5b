"""Reading the symbol table of an ELF object, as far as the loader needs it."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _UNDEFINED = 2, 0


def undefined_symbols(code: bytes) -> tuple[str, ...]:
    """Names that a 64-bit little-endian ELF object uses but does not define, sorted.

    Raises:
        ValueError: `code` is not such an object.
    """
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF object")
    header = _HEADER.unpack_from(code)
    offset, entry_size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(code, offset + i * entry_size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != _SYMTAB:
            continue
        start, size, strings = section[4], section[5], sections[section[6]]
        for place in range(start + _SYMBOL.size, start + size, _SYMBOL.size):
            name, _, _, index, _, _ = _SYMBOL.unpack_from(code, place)
            if index == _UNDEFINED and name:
                begin = strings[4] + name
                names.add(code[begin : code.index(b"\0", begin)].decode())
    return tuple(sorted(names))
