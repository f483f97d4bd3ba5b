"""Compiling ahead: which programs a set of calls needs, and putting them into the store.

report = tileops.warm(calls="calls.jsonl")                  # exactly what an application calls
report = tileops.warm(["GemmFwdOp"], arch=["sm_90a"])       # the manifest's cases, for a GPU that is not here
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tileops import autotune, manifest, settings
from tileops.autotune.problem import record_key
from tileops.errors import TileOpsError
from tileops.jit import ArtifactKey, pool
from tileops.jit.cpu.target import compiling_elsewhere, require_name
from tileops.jit.keys import key_for
from tileops.jit.pool import Outcome, Task
from tileops.jit.program import Program
from tileops.jit.recording import refusal
from tileops.jit.store import default_store
from tileops.ops import observing, recording
from tileops.ops import planned as planning
from tileops.ops.base import Op
from tileops.ops.planned import PlannedCall, RefusedCall

ARCHES = ("native", "sm_80", "sm_86", "sm_89", "sm_90a")


@dataclass(frozen=True)
class Need:
    """A program that some call needs.

    Attributes:
        program: what is compiled.
        arch: what for: the name of a CPU target, or a compute capability.
        op: the first operator that needs it; None where an application asked for it without an operator.
        case_id: the first case, or line of a calls file, that needs it.
    """

    program: Program
    arch: str
    op: str | None
    case_id: str


@dataclass(frozen=True)
class Needs:
    """The programs of a set of calls.

    Attributes:
        programs: each once.
        records: keys of the tuning records that the calls look for.
        refused: reasons by operator, architecture and case of the calls that no kernel serves.
    """

    programs: tuple[Need, ...]
    records: frozenset[str]
    refused: tuple[tuple[str, str, str, str], ...]

    def kernels(self) -> Iterator[tuple[Need, ArtifactKey]]:
        """Each program with the key of its kernel."""
        for need in self.programs:
            yield need, key_for(need.program, pool.target_of(need.arch))


@dataclass(frozen=True)
class WarmReport:
    """What `warm` did.

    Attributes:
        compiled: programs compiled now.
        present: programs that the store held already.
        failed: (program, reason) of those that did not compile.
        without_kernel: number of calls that no kernel serves, by "operator on architecture".
        seconds: how long it took.
    """

    compiled: int
    present: int
    failed: tuple[tuple[str, str], ...]
    without_kernel: dict[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything compiled."""
        return not self.failed

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "compiled": self.compiled,
            "present": self.present,
            "failed": [{"program": program, "reason": reason} for program, reason in self.failed],
            "without_kernel": dict(self.without_kernel),
            "seconds": round(self.seconds, 2),
        }

    def __str__(self) -> str:
        counts = f"{self.compiled} kernels compiled, {self.present} present, {len(self.failed)} failed"
        lines = [
            f"{counts}, {self.seconds:.1f} s",
            *(f"  {label}: {count} calls have no kernel" for label, count in self.without_kernel.items()),
        ]
        programs: dict[str, list[str]] = {}
        for program, reason in self.failed:
            programs.setdefault(reason, []).append(program)
        for reason, names in programs.items():  # what is wrong with the machine is wrong with every program
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  {names[0]}{others}: {reason}")
        return "\n".join(lines)


def warm(
    ops: Iterable[str | type[Op]] | None = None,
    *,
    calls: str | os.PathLike[str] | None = None,
    arch: Sequence[str] = ("native",),
    cpu: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int, Outcome], None] | None = None,
) -> WarmReport:
    """Compiles what calls need, in worker processes, and puts it into the kernel cache. Runs nothing.

    Besides the default tile parameters, those of the tuning record of a call are compiled where there is one.

    Args:
        ops: operators, by class or name; by default all. With `calls`, only the recorded calls of these.
        calls: a file that ``TILEOPS_RECORD`` or `tileops.record` wrote: warm exactly these calls instead of the
            manifest's cases, and without `ops` also the programs that the application compiled by itself.
        arch: "native" (a CPU: this one, or `cpu`) and compute capabilities such as "sm_90a"; needs no GPU.
        cpu: the CPU target of "native": "native", "x86-64-v3", "generic", or LLVM's name of a CPU such as
            "sapphirerapids", which need not be this machine's; by default as ``TILEOPS_CPU`` says. That setting
            changes, for the whole process, while the calls are planned.
        jobs: processes that compile at a time; by default one for each core.
        progress: called as ``progress(done, total, outcome)`` after each program.

    Returns:
        Counts and failures; a program that does not compile is no exception here.

    Raises:
        TileOpsError: an unknown operator or architecture, one that no compiler is installed for, a calls file that
            cannot be read, a cache directory that cannot be used, or a machine that cannot start worker processes.
    """
    started = time.perf_counter()
    for name in arch:
        reason = pool.refusal_of(name)
        if reason is not None:
            raise TileOpsError(f"arch {name!r}: {reason}")
    found = needs(ops, calls=calls, arch=arch, cpu=cpu)
    tasks, outcomes = _tasks(found)
    state = default_store().state()
    if tasks and state not in ("ok", "empty"):
        raise TileOpsError(f"nothing was compiled, because nothing can be kept: {state}; set TILEOPS_CACHE_DIR")
    done = 0

    def count(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(found.programs), outcome)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for outcome in outcomes:
        count(outcome)
    outcomes += _still_there(pool.compile_all(tasks, jobs or cores, count))
    observing.warmed()
    refused: dict[str, int] = {}
    for op, name, _, _ in found.refused:
        refused[f"{op} on {name}"] = refused.get(f"{op} on {name}", 0) + 1
    return WarmReport(
        compiled=sum(outcome.state == "compiled" for outcome in outcomes),
        present=sum(outcome.state == "present" for outcome in outcomes),
        failed=tuple(
            (f"{outcome.task.program.factory} ({outcome.task.arch})", outcome.reason)
            for outcome in outcomes
            if outcome.state == "failed"
        ),
        without_kernel=refused,
        seconds=time.perf_counter() - started,
    )


def _tasks(found: Needs) -> tuple[list[Task], list[Outcome]]:
    """What has to be compiled, and what need not start a process: the store has it, or it is no kernel."""
    store = default_store()
    tasks: list[Task] = []
    settled: list[Outcome] = []
    for need in found.programs:
        task = Task(need.program, need.arch, need.op)
        reason = None if need.op is not None else refusal(need.program)
        if reason is not None:
            settled.append(Outcome(task, "failed", f"{need.case_id}: {reason}"))
            continue
        try:
            stored = store.get(key_for(need.program, pool.target_of(need.arch))) is not None
        except TileOpsError:
            stored = False  # the worker says why
        if stored:
            settled.append(Outcome(task, "present"))
        else:
            tasks.append(task)
    return tasks, settled


def _still_there(outcomes: list[Outcome]) -> list[Outcome]:
    """The same, where what later kernels have crowded out of the store has failed."""
    store = default_store()
    lost = {
        outcome
        for outcome in outcomes
        if outcome.state == "compiled"
        and not store.holds(key_for(outcome.task.program, pool.target_of(outcome.task.arch)).digest)
    }
    reason = f"compiled, but {store.root} holds {settings.current().cache_size} bytes at most; raise TILEOPS_CACHE_SIZE"
    return [replace(outcome, state="failed", reason=reason) if outcome in lost else outcome for outcome in outcomes]


def needs(
    ops: Iterable[str | type[Op]] | None = None,
    *,
    calls: str | os.PathLike[str] | None = None,
    case_ids: Sequence[str] | None = None,
    arch: Sequence[str] = ("native",),
    cpu: str | None = None,
) -> Needs:
    """The programs that calls need; see `warm` for the arguments.

    Args:
        case_ids: only these cases of the manifest.

    Raises:
        TileOpsError: as for `warm`.
    """
    programs: dict[tuple[Program, str], Need] = {}
    refused: list[tuple[str, str, str, str]] = []
    records: set[str] = set()
    for name in arch:
        with _planning_for(name, cpu) as label:
            for op, call in planned(ops, calls=calls, case_ids=case_ids, arch=name, packed=True):
                if isinstance(call, RefusedCall):
                    refused.append((op, label, call.case_id, call.reason))
                    continue
                if call.kernel.tile_space is not None:
                    records.add(record_key(call.kernel, call.call).digest)
                for program in programs_of(call):
                    programs.setdefault((program, label), Need(program, label, op, call.case_id))
            if calls is not None and ops is None:
                for place, program in recording.read_programs(calls):
                    if (program.device == "cuda") == name.startswith("sm_"):
                        programs.setdefault((program, label), Need(program, label, None, place))
    return Needs(tuple(programs.values()), frozenset(records), tuple(refused))


def planned(
    ops: Iterable[str | type[Op]] | None = None,
    *,
    calls: str | os.PathLike[str] | None = None,
    case_ids: Sequence[str] | None = None,
    arch: str = "native",
    packed: bool = False,
) -> Iterator[tuple[str, PlannedCall | RefusedCall]]:
    """Calls to compile or tune for, each with the name of its operator.

    Args:
        ops: operators, by class or name; by default all.
        calls: a file of recorded calls; by default the manifest's cases.
        case_ids: only these cases of the manifest.
        arch: "native" (the CPU that ``TILEOPS_CPU`` chooses) or a compute capability.
        packed: the manifest's cases with packed weights too. (A calls file knows which weights were packed.)

    Raises:
        TileOpsError: an unknown operator, or a calls file that cannot be read.
    """
    wanted = None if ops is None else [op_named(op) for op in ops]
    device = planning.device_for(arch if arch.startswith("sm_") else None)
    if calls is not None:
        names = None if wanted is None else {op.__name__ for op in wanted}
        for line in recording.read_calls(calls):
            if names is None or line.op in names:
                for call in planning.replanned_calls(line, device):
                    yield line.op, call
        return
    for op in _implemented() if wanted is None else wanted:
        if wanted is not None or any(device.type in kernel.devices for kernel in op.kernel_types.values()):
            for call in planning.planned_calls(op, device, case_ids, packed=packed):
                yield op.__name__, call


def programs_of(call: PlannedCall) -> Iterator[Program]:
    """What a planned call may run: with its default tile parameters, and with those of its tuning record."""
    kernel = call.kernel
    configs = [kernel.default_config(call.call)]
    found = autotune.lookup(kernel, call.call)
    if found is not None and found != configs[0]:
        configs.append(found)
    for config in configs:
        yield from kernel.programs(call.call, config).values()
    if call.packed is not None:
        from tileops.ops.gemm.pack import programs

        yield from programs(call.call.tensors()["b"].dtype)


def op_named(op: str | type[Op]) -> type[Op]:
    """The class of an operator, from its name.

    Raises:
        TileOpsError: there is none.
    """
    if isinstance(op, type):
        return op
    found = planning.op_class(op)
    if found is None and op in manifest.load_all():
        raise TileOpsError(f"{op} is spec-only: it has no kernel to compile")
    if found is None:
        raise TileOpsError(f"no operator is called {op!r}; `tileops ops` lists them")
    return found


@contextmanager
def _planning_for(arch: str, cpu: str | None) -> Iterator[str]:
    """Plans as a process with the named CPU target would: kernels look at its features. Gives the target's name."""
    if arch not in ARCHES:
        raise TileOpsError(f"arch {arch!r}: expected some of {', '.join(ARCHES)}")
    if cpu is not None:
        require_name(cpu)
    if arch != "native":
        yield arch
        return
    with settings.scope(cpu=cpu or settings.current().cpu) as now, compiling_elsewhere():
        yield now.cpu


def _implemented() -> Iterator[type[Op]]:
    for entry in sorted(manifest.load_all().values(), key=lambda entry: (entry.family, entry.name)):
        op = planning.op_class(entry.name)
        if op is not None:
            yield op
