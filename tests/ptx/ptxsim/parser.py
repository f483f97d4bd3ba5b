"""PTX text to instructions: the subset that NVVM emits for our kernels, parsed once and checked early."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.ptx.ptxsim.types import PTX_TYPES, PtxError, bits_of

_SPECIAL = re.compile(r"%(?:n?tid|n?ctaid)\.[xyz]$|%laneid$|%dynamic_smem_size$")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_NAME = re.compile(r"[%\w$]+$")


@dataclass(frozen=True)
class Register:
    """A register; `type` is the declared PTX type, such as ``f32`` or ``pred``."""

    name: str
    type: str


@dataclass(frozen=True)
class Immediate:
    """A literal. `value` is an int, or the bits of a ``0f``/``0d`` literal with `float_bits` set to their
    number.
    """

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A shared variable, a kernel parameter or a label, by name."""

    name: str


@dataclass(frozen=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """``[base + offset]``."""

    base: Register | Symbol | Immediate
    offset: int


Operand = Register | Immediate | Special | Symbol | Vector | Address


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``@!p opcode.modifiers operands;``."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    text: str
    line: int

    @property
    def form(self) -> str:
        """Opcode with modifiers, for example ``ld.global.nc.v4.u32``."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass
class Program:
    """A parsed kernel.

    Attributes:
        name: entry name.
        params: ``(name, type)`` of the parameters in order.
        instructions: the body.
        labels: label -> index of the instruction that it precedes.
        shared: static shared variable -> byte offset.
        static_shared: bytes of static shared memory.
        max_threads: product of ``.maxntid``, or None.
    """

    name: str
    params: list[tuple[str, str]]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    static_shared: int = 0
    max_threads: int | None = None

    def forms(self) -> set[str]:
        """Every instruction form that occurs."""
        return {instruction.form for instruction in self.instructions}


def parse(text: str) -> Program:
    """Parses a module with one entry.

    Raises:
        PtxError: the text holds something that this parser does not model (several entries, device
            functions, local or constant memory).
    """
    source = _strip_comments(text)
    entry = re.search(r"\.entry\s+([\w$]+)\s*\(", source)
    if entry is None or source.count(".entry") != 1 or re.search(r"\.func\b", source):
        raise PtxError("expected one .entry and no .func")
    if re.search(r"\.local\b", source):
        raise PtxError("local memory (a stack frame) is not modelled: the kernel must stay in registers")
    header_end = source.index(")", entry.end())
    params = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)", source[entry.end() : header_end])
    program = Program(entry[1], [(name, kind) for kind, name in params])
    body_start = source.index("{", header_end)
    maxntid = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", source[header_end:body_start])
    if maxntid is not None:
        program.max_threads = int(maxntid[1]) * int(maxntid[2] or 1) * int(maxntid[3] or 1)
    _place_shared(program, source)
    _Body(program, source, body_start + 1).parse()
    return program


def _strip_comments(text: str) -> str:
    """Comments become blanks; line breaks stay, so that line numbers stay right."""
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)


def _place_shared(program: Program, source: str) -> None:
    pattern = r"(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)\s*(?:\[(\d*)\])?\s*;"
    offset = 0
    dynamic = []
    for extern, align, kind, name, count in re.findall(pattern, source):
        if extern:
            dynamic.append(name)
            continue
        offset = -(-offset // int(align)) * int(align)
        program.shared[name] = offset
        offset += bits_of(kind) // 8 * int(count or 1)
    program.static_shared = -(-offset // 16) * 16
    for name in dynamic:
        program.shared[name] = program.static_shared


class _Body:
    """Walks the statements of a kernel body; inline-asm blocks open scopes of their own."""

    def __init__(self, program: Program, source: str, start: int) -> None:
        self.program = program
        self.source = source
        self.start = start
        self.scopes: list[dict[str, Register]] = [{}]

    def parse(self) -> None:
        for statement, line in self._statements():
            if statement == "{":
                self.scopes.append({})
            elif statement == "}":
                if len(self.scopes) == 1:
                    break
                self.scopes.pop()
            elif statement.endswith(":"):
                self.program.labels[statement[:-1]] = len(self.program.instructions)
            elif statement.startswith(".reg"):
                self._declare(statement)
            elif statement.startswith((".pragma", ".loc", ".shared")):
                continue
            else:
                self.program.instructions.append(self._instruction(statement, line))
        for instruction in self.program.instructions:
            if instruction.opcode == "bra" and instruction.operands[0].name not in self.program.labels:
                raise PtxError(f"line {instruction.line}: unknown label in {instruction.text!r}")

    def _statements(self):
        """Yields ``(statement, line)``; braces of a vector operand stay inside their statement."""
        source = self.source
        line = source.count("\n", 0, self.start) + 1
        current = ""
        depth = 0
        for char in source[self.start :]:
            if char == "\n":
                line += 1
            if char == ";" and depth == 0:
                if current.strip():
                    yield " ".join(current.split()), line
                current = ""
            elif char == ":" and depth == 0 and re.fullmatch(r"\s*[\w$]+", current):
                yield current.strip() + ":", line
                current = ""
            elif char in "{}" and not current.strip():
                yield char, line
                current = ""
            else:
                depth += (char == "{") - (char == "}")
                current += char

    def _declare(self, statement: str) -> None:
        match = re.fullmatch(r"\.reg\s*\.(\w+)\s+(.*)", statement)
        if match is None or match[1] not in PTX_TYPES:
            raise PtxError(f"cannot read the declaration {statement!r}")
        scope = self.scopes[-1]
        suffix = "" if len(self.scopes) == 1 else f"@{len(self.program.instructions)}"
        for item in match[2].split(","):
            name = item.strip()
            family = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
            names = [f"{family[1]}{k}" for k in range(int(family[2]))] if family else [name]
            scope.update({name: Register(name + suffix, match[1]) for name in names})

    def _instruction(self, statement: str, line: int) -> Instruction:
        guard, negated, rest = None, False, statement
        match = re.match(r"@(!?)([%\w$]+)\s+(.*)$", statement)
        if match is not None:
            negated, rest = match[1] == "!", match[3]
            guard = self._operand(match[2], line)
            if not isinstance(guard, Register):
                raise PtxError(f"line {line}: guard of {statement!r} is no register")
        match = re.match(r"([\w.:]+)\s*(.*)$", rest)
        if match is None:
            raise PtxError(f"line {line}: cannot read {statement!r}")
        opcode, *modifiers = match[1].split(".")
        operands = tuple(self._operand(item, line) for item in _split(match[2]))
        return Instruction(opcode, tuple(modifiers), operands, guard, negated, statement, line)

    def _operand(self, text: str, line: int) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(self._operand(item, line) for item in _split(text[1:-1])))
        if text.startswith("["):
            match = re.fullmatch(r"([%\w$]+)\s*(?:\+\s*(-?\d+))?", text[1:-1].strip())
            if match is None:
                raise PtxError(f"line {line}: address {text} is not modelled")
            return Address(self._operand(match[1], line), int(match[2] or 0))
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        if _SPECIAL.match(text):
            return Special(text)
        if text.startswith(("0f", "0F")):
            return Immediate(int(text[2:], 16), 32)
        if text.startswith(("0d", "0D")):
            return Immediate(int(text[2:], 16), 64)
        if _INTEGER.match(text):
            return Immediate(int(text.rstrip("U"), 0))
        if _NAME.match(text):
            return Symbol(text)
        raise PtxError(f"line {line}: operand {text!r} is not modelled")


def _split(text: str) -> list[str]:
    """Splits at the commas outside braces and brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    if current.strip():
        parts.append(current.strip())
    return parts
