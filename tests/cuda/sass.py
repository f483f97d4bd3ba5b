"""What the machine code of a kernel does with memory, as NVIDIA's disassembler shows it."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

_PACKAGE = "nvidia-cuda-nvdisasm"
#: Accesses of global, local and any memory, with their modifiers: ``LDG.E.128.CONSTANT``, ``STL.64``.
_ACCESS = re.compile(
    r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+\s+)?((?:LDG|STG|LDL|STL|LD|ST)(?:\.\w+)*)\s", re.MULTILINE
)
#: Modifiers that say how wide an access is; without any it is 32 bits.
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


@functools.cache
def _disassembler() -> Path:
    files = importlib.metadata.files(_PACKAGE) or ()
    return Path(str(next(file for file in files if file.stem == "nvdisasm").locate()))


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin.

    Raises:
        importlib.metadata.PackageNotFoundError: the disassembler, which the extra `test` names, is not installed.
        subprocess.CalledProcessError: it cannot read the cubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # Only the code, and without an analysis of its branches, which takes a third of the time.
        command = [str(_disassembler()), "-c", "-ndf", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def accesses(sass: str) -> Counter[tuple[str, int]]:
    """How many accesses of each kind ("LDG", "STL", ...) and width in bits there are."""
    found: Counter[tuple[str, int]] = Counter()
    for instruction in _ACCESS.findall(sass):
        kind, *modifiers = instruction.split(".")
        found[kind, next((_BITS[name] for name in modifiers if name in _BITS), 32)] += 1
    return found


def local(found: Counter[tuple[str, int]]) -> int:
    """How many accesses of local memory, where spilled registers and indexed arrays of a thread live, there are."""
    return sum(count for (kind, _), count in found.items() if kind in ("LDL", "STL"))
