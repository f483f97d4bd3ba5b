"""Runs a parsed kernel: every thread of the grid is one element of NumPy vectors.

Threads may diverge. The scheduler always advances the threads with the smallest program counter together, so
that they meet again after a branch, and a thread that waits at a barrier stands still until its block has
arrived. What a GPU leaves undefined is an error here: shuffles from lanes that are not there, barriers that
not every thread reaches, accesses that memory refuses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.ptx.ptxsim.forms import ELEMENTWISE, Form
from tests.ptx.ptxsim.memory import GlobalMemory, SharedMemory, gather, scatter
from tests.ptx.ptxsim.parser import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Program,
    Register,
    Special,
    Symbol,
    Vector,
    parse,
)
from tests.ptx.ptxsim.types import PTX_TYPES, UNSIGNED, PtxError, SimError, is_float

WARP = 32


def launch(
    program: Program | str,
    memory: GlobalMemory,
    grid: int,
    block: int,
    args: Sequence[int | np.generic],
    *,
    dynamic_shared: int = 0,
    step_limit: int = 2_000_000,
) -> Machine:
    """Runs a kernel to its end.

    Args:
        program: a parsed program or PTX text.
        memory: holds the tensors.
        grid: number of blocks.
        block: threads of a block, a multiple of 32.
        args: one value per parameter; NumPy scalars must have the size of their parameter.
        dynamic_shared: bytes of dynamic shared memory.
        step_limit: instructions after which the kernel counts as hung.

    Returns:
        The machine after the run, for its statistics.

    Raises:
        SimError: the kernel did something wrong; the message names the instruction, the block and the thread.
        PtxError: an instruction is not modelled.
    """
    memory.written[:] = False
    machine = Machine(
        parse(program) if isinstance(program, str) else program, memory, grid, block, args, dynamic_shared
    )
    with np.errstate(all="ignore"):
        machine.run(step_limit)
    return machine


class Machine:
    """One launch. Use `launch`.

    Attributes:
        executed: how often each instruction form was issued, for whatever set of threads.
    """

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        grid: int,
        block: int,
        args: Sequence[int | np.generic],
        dynamic_shared: int,
    ) -> None:
        if block % WARP or not block or grid < 1:
            raise SimError(f"grid {grid}, block {block}: a block is whole warps of {WARP}, a grid one block or more")
        if program.max_threads is not None and block > program.max_threads:
            raise SimError(f"block {block} exceeds .maxntid {program.max_threads}")
        self.program = program
        self.memory = memory
        self.grid, self.block, self.threads = grid, block, grid * block
        index = np.arange(self.threads)
        self.block_of, self.warp_of = index // block, index // WARP
        self.shared = SharedMemory(grid, -(-(program.static_shared + dynamic_shared) // 16) * 16)
        self.specials = self._special_registers(index, dynamic_shared)
        self.params = self._parameters(args)
        self.registers: dict[str, np.ndarray] = {}
        self.executed: Counter[str] = Counter()
        self.pc = np.zeros(self.threads, np.int64)
        self.alive = np.ones(self.threads, np.bool_)
        self.waiting = np.zeros(self.threads, np.bool_)
        self.steps = [self._step_of(instruction) for instruction in program.instructions]
        self.targets = set(program.labels.values())

    def _special_registers(self, index: np.ndarray, dynamic_shared: int) -> dict[str, np.ndarray]:
        zero, one = np.zeros(self.threads, np.uint32), np.ones(self.threads, np.uint32)
        values = {
            "%tid.x": index % self.block,
            "%ctaid.x": self.block_of,
            "%ntid.x": one * self.block,
            "%nctaid.x": one * self.grid,
            "%laneid": index % WARP,
            "%dynamic_smem_size": one * dynamic_shared,
        }
        for axis in "yz":
            values |= {
                f"%tid.{axis}": zero,
                f"%ctaid.{axis}": zero,
                f"%ntid.{axis}": one,
                f"%nctaid.{axis}": one,
            }
        return {name: value.astype(np.uint32) for name, value in values.items()}

    def _parameters(self, args: Sequence[int | np.generic]) -> dict[str, np.ndarray]:
        if len(args) != len(self.program.params):
            raise SimError(f"{len(args)} arguments for {len(self.program.params)} parameters")
        values = {}
        for (name, kind), arg in zip(self.program.params, args, strict=True):
            dtype = PTX_TYPES[kind]
            if isinstance(arg, np.generic):
                if arg.dtype.itemsize != dtype.itemsize:
                    raise SimError(f"parameter {name} is .{kind}, its argument is {arg.dtype}")
                value = np.array(arg).view(dtype)
            elif is_float(kind) or not isinstance(arg, int):
                raise SimError(f"parameter {name} is .{kind}: pass a NumPy scalar, not {type(arg).__name__}")
            else:
                value = np.array(arg & (2 ** (dtype.itemsize * 8) - 1), UNSIGNED[dtype.itemsize]).view(dtype)
            values[name] = value
        return values

    # -- the scheduler
    # -----------------------------------------------------------------------------------------

    def run(self, step_limit: int) -> None:
        """Runs until every thread has left."""
        steps = 0
        while True:
            ready = self.alive & ~self.waiting
            if not ready.any():
                if not self.alive.any():
                    return
                thread = int(np.argmax(self.alive))
                raise SimError(f"deadlock: {self._where(thread)} waits at a barrier that its block never reaches")
            pc = int(self.pc[ready].min())
            active = ready & (self.pc == pc)
            while True:
                steps += 1
                if steps > step_limit:
                    raise SimError(f"the kernel still runs after {step_limit} instructions")
                if pc >= len(self.steps):
                    self.alive &= ~active
                    break
                moved = self._issue(pc, active)
                if moved:
                    break
                pc += 1
                if pc in self.targets:
                    self.pc[active] = pc
                    break

    def _issue(self, pc: int, active: np.ndarray) -> bool:
        """Executes one instruction for the threads `active`; True if it set their program counters."""
        instruction = self.program.instructions[pc]
        taken = active
        if instruction.guard is not None:
            guard = self._register(instruction.guard, instruction)
            taken = active & (~guard if instruction.guard_negated else guard)
        self.executed[instruction.form] += 1
        opcode = instruction.opcode
        if opcode == "bra":
            self.pc[active] = pc + 1
            self.pc[taken] = self.program.labels[instruction.operands[0].name]
            return True
        if opcode in ("ret", "exit"):
            self.pc[active] = pc + 1
            self.alive &= ~taken
            self._release()
            return True
        if instruction.form == "bar.sync":
            self.pc[active] = pc + 1
            self.waiting |= taken
            self._release()
            return True
        if taken.any():
            self.steps[pc](taken)
        return False

    def _release(self) -> None:
        """Opens the barrier of every block whose threads have all arrived or left."""
        waiting = self.waiting.reshape(self.grid, self.block)
        done = (waiting | ~self.alive.reshape(self.grid, self.block)).all(1) & waiting.any(1)
        if done.any():
            waiting[done] = False
            self.shared.barrier(np.flatnonzero(done))

    def _where(self, thread: int) -> str:
        return f"block {thread // self.block} thread {thread % self.block}"

    def _error(self, instruction: Instruction, message: str, thread: int) -> SimError:
        return SimError(f"{self._where(thread)}: {message}\n  line {instruction.line}: {instruction.text}")

    # -- operands
    # ----------------------------------------------------------------------------------------------

    def _register(self, register: Register, instruction: Instruction) -> np.ndarray:
        value = self.registers.get(register.name)
        if value is None:
            raise SimError(
                f"{register.name} is read before anything wrote it\n  line {instruction.line}: {instruction.text}"
            )
        return value

    def _read(self, operand: Operand, kind: str, instruction: Instruction) -> np.ndarray:
        """The operand of every thread as PTX type `kind`; wider registers give their low bits."""
        dtype = PTX_TYPES[kind]
        if isinstance(operand, Register):
            value = self._register(operand, instruction)
            if value.dtype == dtype:
                return value
            if value.dtype.itemsize == dtype.itemsize and value.dtype != np.bool_:
                return value.view(dtype)
            if value.dtype.itemsize > dtype.itemsize:
                return value.view(UNSIGNED[value.dtype.itemsize]).astype(UNSIGNED[dtype.itemsize]).view(dtype)
        elif isinstance(operand, Special) and dtype.itemsize == 4:
            return self.specials[operand.name].view(dtype)
        elif isinstance(operand, Immediate):
            bits = operand.float_bits or dtype.itemsize * 8
            if bits == dtype.itemsize * 8 or dtype == np.bool_:
                word = np.array(operand.value & (2**bits - 1), UNSIGNED[bits // 8])
                scalar = word.astype(dtype) if dtype == np.bool_ else word.view(dtype)
                return np.full(self.threads, scalar, dtype)
        elif isinstance(operand, Symbol) and operand.name in self.program.shared:
            return np.full(self.threads, self.program.shared[operand.name], dtype)
        raise SimError(f"operand {operand} cannot be read as .{kind}\n  line {instruction.line}: {instruction.text}")

    def _write(self, operand: Operand, value: np.ndarray, taken: np.ndarray, instruction: Instruction) -> None:
        """Writes `value` to a register where `taken`; narrower values are sign- or zero-extended."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return
        if not isinstance(operand, Register):
            raise SimError(f"destination {operand} is no register\n  line {instruction.line}: {instruction.text}")
        dtype = PTX_TYPES[operand.type]
        if value.dtype != dtype:
            if value.dtype.itemsize < dtype.itemsize and value.dtype.kind in "iu":
                value = value.astype(np.dtype(f"{value.dtype.kind}{dtype.itemsize}"))
            if value.dtype.itemsize != dtype.itemsize or value.dtype == np.bool_ or dtype == np.bool_:
                raise SimError(
                    f"a {value.dtype} does not fit .{operand.type} {operand.name}\n"
                    f"  line {instruction.line}: {instruction.text}"
                )
            value = value.view(dtype)
        register = self.registers.get(operand.name)
        if register is None:
            register = self.registers[operand.name] = np.zeros(self.threads, dtype)
        np.copyto(register, value, where=taken)

    # -- instructions
    # ------------------------------------------------------------------------------------------

    def _step_of(self, instruction: Instruction) -> Callable[[np.ndarray], None]:
        form = ELEMENTWISE.get(instruction.form)
        if form is not None:
            return self._elementwise(instruction, form)
        handlers: dict[str, Callable[..., None]] = {
            "mov": self._mov,
            "ld": self._ld,
            "st": self._st,
            "shfl": self._shfl,
            "bar": self._nothing,
            "bra": self._nothing,
            "ret": self._nothing,
            "exit": self._nothing,
        }
        handler = handlers.get(instruction.opcode)
        if handler is None or (instruction.opcode == "bar" and instruction.form not in ("bar.sync", "bar.warp.sync")):
            raise PtxError(f"line {instruction.line}: {instruction.form} is not modelled ({instruction.text})")
        return lambda taken: handler(instruction, taken)

    def _nothing(self, instruction: Instruction, taken: np.ndarray) -> None:
        """Control flow is the scheduler's; a warp runs in step, so ``bar.warp.sync`` has no work."""

    def _elementwise(self, instruction: Instruction, form: Form) -> Callable[[np.ndarray], None]:
        destination, *sources = instruction.operands
        if len(sources) != len(form.sources):
            raise PtxError(
                f"line {instruction.line}: {form.name} takes {len(form.sources)} sources ({instruction.text})"
            )

        def step(taken: np.ndarray) -> None:
            values = [self._read(item, kind, instruction) for item, kind in zip(sources, form.sources, strict=True)]
            result = form.compute(*values)
            self._write(destination, result.astype(PTX_TYPES[form.result], copy=False), taken, instruction)

        return step

    def _mov(self, instruction: Instruction, taken: np.ndarray) -> None:
        kind = instruction.modifiers[-1]
        destination, source = instruction.operands
        width = PTX_TYPES[kind].itemsize
        if isinstance(destination, Vector):
            part = UNSIGNED[width // len(destination.items)]
            value = self._read(source, kind, instruction).view(part).reshape(self.threads, -1)
            for k, item in enumerate(destination.items):
                self._write(item, np.ascontiguousarray(value[:, k]), taken, instruction)
        elif isinstance(source, Vector):
            part = f"b{8 * width // len(source.items)}"
            columns = [self._read(item, part, instruction) for item in source.items]
            value = np.stack(columns, axis=1).view(UNSIGNED[width])[:, 0]
            self._write(destination, value, taken, instruction)
        else:
            self._write(destination, self._read(source, kind, instruction), taken, instruction)

    def _shfl(self, instruction: Instruction, taken: np.ndarray) -> None:
        """``shfl.sync.{up,down,bfly,idx}.b32 d, a, b, c, membermask``; see the pseudocode of the ISA."""
        mode = instruction.modifiers[1]
        if instruction.modifiers[0] != "sync" or instruction.modifiers[-1] != "b32":
            raise PtxError(f"line {instruction.line}: {instruction.form} is not modelled")
        destination, *sources = instruction.operands
        value, lane_operand, clamp, members = (
            self._read(item, "b32", instruction).reshape(-1, WARP) for item in sources
        )
        lane = np.arange(WARP)
        present = taken.reshape(-1, WARP)
        named = (members >> lane.astype(np.uint32)) & 1 == 1
        wrong = present & ((members != members[:, :1]) | ~named)
        missing = (
            present.any(1)[:, None] & (_first(members, present)[:, None] >> lane.astype(np.uint32) & 1 == 1) & ~present
        )
        if wrong.any() or missing.any():
            thread = int(np.argmax((wrong | missing).reshape(-1)))
            raise self._error(instruction, "the member mask does not name exactly the lanes that are here", thread)
        offset, bound = (lane_operand & 31).astype(np.int64), (clamp & 31).astype(np.int64)
        segment = ((clamp >> 8) & 31).astype(np.int64)
        last = (lane & segment) | (bound & ~segment)
        source, valid = {
            "up": lambda: (lane - offset, lane - offset >= last),
            "down": lambda: (lane + offset, lane + offset <= last),
            "bfly": lambda: (lane ^ offset, (lane ^ offset) <= last),
            "idx": lambda: (
                (lane & segment) | (offset & ~segment),
                ((lane & segment) | (offset & ~segment)) <= last,
            ),
        }[mode]()
        source = np.where(valid, source, lane)
        absent = present & ~np.take_along_axis(present, source, axis=1)
        if absent.any():
            raise self._error(instruction, "shuffle from a lane that is not here", int(np.argmax(absent.reshape(-1))))
        self._write(destination, np.take_along_axis(value, source, axis=1).reshape(-1), taken, instruction)

    # -- memory
    # ------------------------------------------------------------------------------------------------

    def _ld(self, instruction: Instruction, taken: np.ndarray) -> None:
        destination, address = instruction.operands
        space, count, kind, read_only = _memory_form(instruction, ("param", "global", "shared"))
        if space == "param":
            value = self.params[address.base.name].view(PTX_TYPES[kind])
            self._write(destination, np.full(self.threads, value, value.dtype), taken, instruction)
            return
        threads = np.flatnonzero(taken)
        dtype = PTX_TYPES[kind]
        memory, offsets = self._locate(instruction, space, address, threads, dtype.itemsize * count, False, read_only)
        items = destination.items if isinstance(destination, Vector) else (destination,)
        for item, loaded in zip(items, gather(memory, offsets, dtype, count), strict=True):
            value = np.zeros(self.threads, dtype)
            value[threads] = loaded
            self._write(item, value, taken, instruction)

    def _st(self, instruction: Instruction, taken: np.ndarray) -> None:
        address, source = instruction.operands
        space, count, kind, _ = _memory_form(instruction, ("global", "shared"))
        threads = np.flatnonzero(taken)
        memory, offsets = self._locate(
            instruction, space, address, threads, PTX_TYPES[kind].itemsize * count, True, False
        )
        items = source.items if isinstance(source, Vector) else (source,)
        if len(items) != count:
            raise PtxError(f"line {instruction.line}: {len(items)} values for {instruction.form}")
        scatter(memory, offsets, [self._read(item, kind, instruction)[threads] for item in items])

    def _locate(
        self,
        instruction: Instruction,
        space: str,
        address: Address,
        threads: np.ndarray,
        size: int,
        write: bool,
        read_only: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The memory of `space` and the byte offset in it for every one of `threads`."""
        base: Any = address.base
        pointer = "b64" if isinstance(base, Register) and base.type.endswith("64") else "b32"
        where = self._read(base, pointer, instruction)[threads].astype(np.int64) + address.offset
        try:
            if space == "global":
                return self.memory.bytes, self.memory.locate(where, size, write=write, read_only=read_only)
            offsets = self.shared.locate(where, size, self.block_of[threads], self.warp_of[threads], write=write)
            return self.shared.bytes, offsets
        except SimError as error:
            raise self._error(instruction, str(error), int(threads[error.culprit])) from None


def _memory_form(instruction: Instruction, spaces: Sequence[str]) -> tuple[str, int, str, bool]:
    """``(space, elements, type, through the read-only path)`` of a load or store.

    Raises:
        PtxError: a modifier that is not modelled.
    """
    space, *rest = instruction.modifiers
    read_only = rest[:1] == ["nc"]
    rest = rest[read_only:]
    count = {"v2": 2, "v4": 4}.get(rest[0], 1) if rest else 1
    rest = rest[count > 1 :]
    if (
        space not in spaces
        or len(rest) != 1
        or rest[0] not in PTX_TYPES
        or math.prod((count, PTX_TYPES[rest[0]].itemsize)) > 16
    ):
        raise PtxError(f"line {instruction.line}: {instruction.form} is not modelled ({instruction.text})")
    return space, count, rest[0], read_only


def _first(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    """For each row the value of its first present column."""
    return values[np.arange(len(values)), np.argmax(present, axis=1)]
