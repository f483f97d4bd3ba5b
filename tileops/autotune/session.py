"""One search over the tile space of a kernel for one call.

Candidates are compiled and checked in worker processes and timed in rounds: every candidate of a batch once
a round, the default in each batch, so that whatever slows the machine for a while slows all of them. What
counts is a candidate's time over the default's, from the quieter half of the rounds. The best few are
measured again together; of those within 2 % of the fastest, the first in the order of the space is chosen,
so that runs agree. A gain of a few percent must show again in a fresh process, else the default stays.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tileops import settings
from tileops.autotune.measure import Measurer, ProcessMeasurer, Result
from tileops.autotune.policy import tuning_refusal
from tileops.autotune.problem import Problem, config_text, record_key
from tileops.autotune.progress import Listener, Progress, StderrLine
from tileops.autotune.record import Point, Record, RecordStore, default_records, environment
from tileops.autotune.report import KernelReport, Report
from tileops.autotune.search import ENUMERATED, Enumeration, Search, TpeSearch
from tileops.autotune.study import is_shared
from tileops.errors import TuningError
from tileops.jit.artifact import ArtifactKey, canonical_json
from tileops.jit.store import built_for, built_label, default_store

log = logging.getLogger("tileops.autotune")

Effort = Literal["quick", "full"]
EFFORTS: dict[Effort, tuple[float, int | None]] = {"quick": (15.0, 16), "full": (60.0, None)}
"""Seconds, and points to measure; None: all of a small space, 64 of a large one."""

_TIE = 0.02  # configs this close to the fastest are equal, and the first of them is taken
_CLEAR = 0.93  # a config at this part of the default's time is faster beyond doubt
_SPREAD = 0.3  # a quieter half that spreads wider than this is no measurement
_FINALISTS = 4
_LOSER = 1.3  # after three rounds, a config this much slower than the best of its batch is not timed again
_SEARCH_SHARE = 0.75  # of the budget
_FIRST_RUN = 2.0  # seconds; with less left, a default that does not answer may be all right
_SAMPLE_SECONDS = 1e-3  # launches are repeated to fill a sample of this length
_ALONE = "this call has one valid config, the default: nothing to tune"


_PENDING = Result("ok")


@dataclass
class _Candidate:
    """A config under measurement."""

    config: dict[str, Any]
    index: int  # 0 is the default, then the order of the space
    result: Result = _PENDING
    repeats: int = 1
    samples: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(_quiet_half(self.samples)) if self.samples else math.nan

    @property
    def spread(self) -> float:
        half = _quiet_half(self.samples)
        return half[-1] / half[len(half) // 5] - 1.0  # the very fastest samples may be a fluke


def _quiet_half(samples: Sequence[float]) -> list[float]:
    """The faster half: other processes only ever add time, and may do so for half of a session."""
    return sorted(samples)[: (len(samples) + 1) // 2]


def tune(
    kernel: type[Any],
    call: Any,
    *,
    op: str = "",
    effort: Effort = "full",
    budget: float | None = None,
    trials: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    storage: str | Path | None = None,
    progress: bool | Listener = False,
    outputs: Sequence[str] | None = None,
    updated: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    records: RecordStore | None = None,
    measurer: Measurer | None = None,
) -> Report:
    """Searches the tile space of `kernel` for `call` and records the winner.

    Spaces of up to 64 valid points are measured whole, larger ones through Optuna. Points that an earlier
    record holds are not measured again. The tensors of the caller are never touched: workers make their
    own.

    Args:
        kernel: a kernel class with a `tile_space`.
        call: its call spec.
        op: name of the operator, for the record.
        effort: what `budget` and `trials` are by default: "quick" is 15 s and at most 16 points, "full" 60 s and every
            point of a small space, 64 of a large one.
        budget: seconds that the search may take.
        trials: points to measure in all.
        seed: of the sampler and of the tensors' contents.
        jobs: processes that compile at a time; by default up to 4, one for each CPU.
        storage: where Optuna keeps the study: the path of a journal file, or the URL of a database that several
            processes and machines share (``postgresql://...``); by default as ``TILEOPS_TUNE_STORAGE`` says, else a
            journal file in the cache directory.
        progress: True writes to stderr, a function receives `progress.Progress` objects.
        outputs: tensors that a launch writes (see `Problem.of`).
        updated: tensors that a launch reads and writes.
        values: integer tensors whose contents matter, by name.
        records: where to look and record; by default the cache directory in force.
        measurer: what runs the candidates; by default worker processes.

    Returns:
        A report with one kernel, or none and a note where the kernel has no tile parameters.

    Raises:
        DefaultFailedError: the default config failed, so there is nothing to compare with; the first three causes
            are named.
        TuningError: `storage` cannot be used, or no worker process can be started.
    """
    budget = EFFORTS[effort][0] if budget is None else budget
    trials = EFFORTS[effort][1] if trials is None else trials
    if kernel.tile_space is None:
        return Report(note=f"{kernel.__qualname__} has no tile parameters")
    facts = _Facts(kernel, call, op, record_key(kernel, call), dict(kernel.default_config(call)))
    reason = tuning_refusal()
    if reason is not None:
        log.warning("%s runs with its default config: no tuning under %s", kernel.__qualname__, reason)
        return Report((facts.unmeasured(f"no tuning under {reason}"),))
    records = records or default_records()
    storage = storage or settings.current().tune_storage
    listener = StderrLine() if progress is True else progress or None
    # One process of this machine searches and the others wait for its record, unless they share the search.
    turn = nullcontext() if storage and is_shared(storage) else records.disk.lock(facts.key.digest)
    search: Search | None = None
    try:
        with turn:
            record = records.get(facts.key, fresh=True)
            known = _still_known(record)
            if not facts.alternatives:
                return _done(facts.unmeasured(_ALONE))
            search = _search(facts, known, trials, seed, storage or records.root / "studies.log", storage is not None)
            first = search.ask(1)
            if not first and record is not None:
                return _done(facts.recorded(record))
            if not first and not search.known:
                return _done(facts.unmeasured(f"trials={trials} is the default alone: nothing was compared"))
            if measurer is None:
                problem = Problem.of(kernel, call, outputs=outputs, updated=updated, values=values, seed=seed)
                measurer = ProcessMeasurer(problem, default_store(), jobs)
            session = _Session(facts, search, measurer, budget, trials, listener)
            try:
                result = session.run(first)
            except _BudgetSpent:
                result = facts.unmeasured(f"the default was not measured within {budget:g} s: give a larger budget")
            if not result.persisted:
                log.warning("%s: %s", kernel.__qualname__, result.note)
            if result.persisted:
                points = tuple(result.points)
                made = Record(result.best, result.default, points, op, environment())
                with built_for(op or built_label()):
                    measurer.publish(result.best)
                if not records.put(facts.key, made):
                    note = f"only this process knows it, the record cannot be kept: {records.disk.fault()}"
                    result = replace(result, persisted=False, note=note)
    finally:
        if measurer is not None:
            measurer.close()
        if search is not None:
            search.close()
        if isinstance(listener, StderrLine):
            listener.close()
    log.info("%s", result.summary())
    return _done(result)


class DefaultFailedError(TuningError):
    """The default config of a kernel does not work for a call, so there is nothing to compare with."""


class _BudgetSpent(Exception):
    """Compiling the default left too little time to run it."""


def on_tune(hook: Callable[[KernelReport], None]) -> Callable[[], None]:
    """Calls `hook` with the result of each tuned kernel, in that thread, until the returned function is called."""
    _hooks.append(hook)

    def stop() -> None:
        if hook in _hooks:
            _hooks.remove(hook)

    return stop


_hooks: list[Callable[[KernelReport], None]] = []


def _done(result: KernelReport) -> Report:
    for hook in tuple(_hooks):
        hook(result)
    return Report((result,))


@dataclass(frozen=True)
class _Facts:
    """What is being tuned."""

    kernel: type[Any]
    call: Any
    op: str
    key: ArtifactKey
    default: dict[str, Any]

    @cached_property
    def alternatives(self) -> list[dict[str, Any]]:
        """The valid points but the default."""
        return [config for config in self.kernel.tile_space.points(self.call) if config != self.default]

    def report(self, **values: Any) -> KernelReport:
        describe = getattr(self.call, "describe", None)
        text = describe() if describe is not None else repr(self.call)
        return KernelReport(kernel=self.kernel.__qualname__, op=self.op, call=text, default=self.default, **values)

    def unmeasured(self, note: str) -> KernelReport:
        return self.report(
            best=self.default,
            default_seconds=math.nan,
            best_seconds=math.nan,
            points=(),
            measured=0,
            seconds=0.0,
            persisted=False,
            note=note,
        )

    def recorded(self, record: Record) -> KernelReport:
        seconds = {point.text: point.seconds for point in record.points if point.ok}
        fits = self.kernel.tile_space.is_valid(record.config, self.call)
        names = self.kernel.tile_space.parameters
        best = {name: record.config[name] for name in names} if fits else self.default
        return self.report(
            best=best,
            default_seconds=seconds.get(config_text(record.default), math.nan),
            best_seconds=seconds.get(config_text(best), math.nan),
            points=record.points,
            measured=0,
            seconds=0.0,
            persisted=True,
            note="from the record" if fits else "the recorded config is not valid for this call",
        )


def _still_known(record: Record | None) -> tuple[Point, ...]:
    """Points that need no new measurement: what worked, and what failed with the very same sources."""
    if record is None:
        return ()
    now = environment()
    same = record.environment.get("sources") == now["sources"]
    return tuple(point for point in record.points if point.ok or same)


def _search(
    facts: _Facts, known: Sequence[Point], trials: int | None, seed: int, storage: str | Path, chosen: bool
) -> Search:
    space = facts.kernel.tile_space
    points = facts.alternatives
    if len(points) < ENUMERATED and not chosen:
        return Enumeration(points, known, None if trials is None else max(0, trials - 1))
    # Optuna wants the same values of a parameter in every trial of a study; records carry over what was measured.
    values = hashlib.sha256(canonical_json(list(space.parameters.items())).encode()).hexdigest()
    return TpeSearch(
        points,
        space,
        known,
        trials=min(trials or ENUMERATED, len(points) + 1) - 1,
        seed=seed,
        name=f"{facts.kernel.__qualname__}-{facts.key.digest[:16]}-{values[:8]}",
        storage=storage,
    )


class _Session:
    """The measuring part of one search."""

    def __init__(
        self,
        facts: _Facts,
        search: Search,
        measurer: Measurer,
        budget: float,
        trials: int | None,
        listener: Listener | None,
    ) -> None:
        self._facts = facts
        self._search = search
        self._measurer = measurer
        self._start = time.monotonic()
        self._budget = budget
        # The rest of the budget is for confirming the choice: one that is not confirmed is not taken.
        self._end = self._start + _SEARCH_SHARE * budget
        self._usual = 0.0  # seconds of a launch with the default
        self._listener = listener
        space = facts.kernel.tile_space
        self._order = {config_text(config): i + 1 for i, config in enumerate(space.points(facts.call))}
        self._order[config_text(facts.default)] = 0
        self._total = trials or min(len(self._order), ENUMERATED)
        self._default = _Candidate(facts.default, 0)
        self._points: dict[str, Point] = {
            point.text: point for point in search.known if point.text != config_text(facts.default)
        }
        self._measured = 0
        self._compile_limit = max(5.0, 0.8 * budget)
        self._each_compile = 0.0  # seconds for one of a batch, lately

    # The whole run

    def run(self, first: list[dict[str, Any]]) -> KernelReport:
        self._admit([])
        proposed = first + self._search.ask(self._batch() - len(first))
        while proposed and self._left() > 0:
            self._measure(proposed)
            proposed = self._search.ask(self._batch(), patience=self._left())
        # What other processes of a shared study have measured meanwhile competes as well.
        for point in self._search.known:
            self._points.setdefault(point.text, point)
        self._points.pop(config_text(self._facts.default), None)
        cut_off, compared = self._left() <= 0, bool(self._points)
        self._end = self._start + self._budget
        seen = min((point.ratio for point in self._points.values() if point.ok), default=1.0)
        settled, best = self._confirm()
        persisted = compared and settled
        default_seconds = self._default.seconds
        chosen = self._points.get(config_text(best))
        ratio = chosen.ratio if chosen is not None else 1.0
        default = Point(self._facts.default, "ok", default_seconds, 1.0)
        ordered = sorted(self._points.values(), key=lambda point: self._order.get(point.text, len(self._order)))
        others = [point for point in ordered if point.text != default.text]
        notes = []
        if not compared:
            notes = [
                f"no other config was measured within {self._budget:g} s, nothing was recorded: give a larger budget"
            ]
        elif not settled:
            notes = ["timings vary too much to choose by; nothing was recorded: tune again on a quieter machine"]
        elif best == self._facts.default and seen * (1 + _TIE) < 1.0:
            notes = [f"the {1 / seen:.2f}x that the search saw was not confirmed, the default stays"]
        if compared and settled and cut_off:
            notes.append(f"the search was cut off to stay within {self._budget:g} s; the next one goes on from there")
        return self._facts.report(
            best=best,
            default_seconds=default_seconds,
            best_seconds=default_seconds * ratio,
            points=(default, *others),
            measured=self._measured,
            seconds=time.monotonic() - self._start,
            persisted=persisted,
            note="; ".join(notes),
        )

    def _batch(self) -> int:
        """Configs to go on with: as many as compare best together, but no more than compile in half of the time."""
        largest = 15 if isinstance(self._search, Enumeration) else 5
        return max(1, min(largest, int(0.5 * self._left() / max(self._each_compile, 1e-3))))

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _report(self, phase: str, best: float = 1.0) -> None:
        if self._listener is not None:
            ratios = [point.ratio for point in self._points.values() if point.ok]
            self._listener(
                Progress(
                    kernel=self._facts.kernel.__qualname__,
                    phase=phase,
                    done=len(self._points) + 1,
                    total=max(self._total, len(self._points) + 1),
                    best=1 / min([best, *ratios]),
                    seconds=time.monotonic() - self._start,
                    budget=self._budget,
                )
            )

    # One batch

    def _measure(self, configs: list[dict[str, Any]]) -> None:
        candidates = [_Candidate(config, self._order[config_text(config)]) for config in configs]
        ready = self._admit(candidates)
        if ready:
            self._default.samples = []  # compared are samples of the same minutes
            self._rounds([self._default, *ready], _rounds_for(self._usual))
        for candidate in candidates:
            self._settle(candidate)

    def _settle(self, candidate: _Candidate) -> None:
        """Turns what is known of a candidate into a point; one that the budget cut off is left for another
        run.
        """
        result = candidate.result
        if not candidate.samples and (result.ok or (result.outcome == "timeout" and self._left() <= 0)):
            return
        ratio = candidate.seconds / self._default.seconds if result.ok else math.nan
        seconds = candidate.seconds if result.ok else math.nan
        point = Point(dict(candidate.config), result.outcome, seconds, ratio, result.cause)
        if not result.ok:
            log.debug("%s %s: %s: %s", self._facts.kernel.__qualname__, *_line(point))
        self._points[point.text] = point
        self._measured += 1
        self._search.tell(point)

    def _admit(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """Compiles and checks the default, once, and `candidates`; those that may be timed.

        Raises:
            TuningError: the default fails.
        """
        fresh = [] if self._usual else [self._default]
        self._report("compile")
        self._compile([*fresh, *candidates])
        for candidate in [*fresh, *candidates]:
            time_to_check = self._left()
            if candidate.result.ok:
                candidate.result = self._check(candidate)
            if candidate is self._default and candidate.result.outcome == "timeout" and time_to_check < _FIRST_RUN:
                raise _BudgetSpent
            if candidate is self._default and not candidate.result.ok:
                self._fail()
        if fresh:
            self._rounds(fresh, 3)
            self._usual = self._default.seconds
        return [candidate for candidate in candidates if candidate.result.ok and self._left() > 0]

    def _fail(self) -> None:
        # Do others fail in the same way?
        witnesses = [_Candidate(config, -1) for config in self._facts.alternatives[:2]]
        self._compile(witnesses)
        for found in witnesses:
            if found.result.ok:
                found.result = self._check(found)
        candidates = [self._default, *witnesses]
        causes = [
            f"{config_text(found.config)}: {found.result.outcome}: {found.result.cause}"
            for found in candidates
            if not found.result.ok
        ]
        raise DefaultFailedError(
            f"{self._facts.kernel.__qualname__}: the default config failed, there is nothing to compare with:"
            + "".join(f"\n  {cause}" for cause in causes[:3])
            + "\nNothing was recorded; run the operator once untuned to see the error in full."
        )

    def _compile(self, candidates: list[_Candidate]) -> None:
        to_compile = []
        for candidate in candidates:
            try:
                self._facts.kernel.programs(self._facts.call, candidate.config)
            except Exception as error:  # whatever the kernel class makes of an odd config
                candidate.result = Result("invalid", cause=f"{type(error).__name__}: {error}")
            else:
                to_compile.append(candidate)
        start = time.monotonic()
        limit = min(self._compile_limit, max(self._left(), 0.1))
        results = self._measurer.compile([candidate.config for candidate in to_compile], limit, max(self._left(), 0.1))
        self._each_compile = (time.monotonic() - start) / max(1, len(to_compile))
        for candidate, result in zip(to_compile, results, strict=True):
            candidate.result = result
        if self._default in to_compile:
            # The first compile loads the compiler as well, so it bounds what others may take.
            self._compile_limit = 2.0 + 3.0 * (time.monotonic() - start)

    def _check(self, candidate: _Candidate) -> Result:
        if self._left() <= 0:
            return Result("ok")
        limit = self._left() if candidate is self._default else 2.0 + 50.0 * self._usual
        result = _sane(self._measurer.check(candidate.config, min(limit, max(self._left(), 0.1))))
        if result.ok:
            candidate.repeats = _repeats_for(result.seconds)
        return result

    def _rounds(self, candidates: Sequence[_Candidate], rounds: int) -> None:
        """Times `candidates` in turn, `rounds` times, dropping those that are clearly slower."""
        running = list(candidates)
        with self._measurer.exclusive():
            for turn in range(rounds):
                self._report("measure")
                for candidate in running if turn % 2 == 0 else reversed(running):
                    if self._left() <= 0 and self._default.samples:
                        return
                    usual = candidate.repeats * (candidate.seconds if candidate.samples else 0.0)
                    limit = 2.0 + 20.0 * usual
                    result = _sane(self._measurer.time(candidate.config, candidate.repeats, limit))
                    if result.ok:
                        candidate.samples.append(result.seconds)
                        # The first launches of a process, or a busy moment, took longer than it needs.
                        candidate.repeats = max(candidate.repeats, _repeats_for(result.seconds))
                    else:
                        candidate.result = result
                        if candidate is self._default:
                            self._fail()
                running = [found for found in running if found.result.ok]
                if turn == 2 and len(running) > 2:
                    best = min(found.seconds for found in running)
                    running = [found for found in running if found is self._default or found.seconds <= _LOSER * best]

    # The choice

    def _confirm(self) -> tuple[bool, dict[str, Any]]:
        """Measures the best points together with the default, and chooses; whether timings let it, and the config."""
        ok = sorted((point for point in self._points.values() if point.ok), key=lambda point: point.ratio)
        near = [point for point in ok if point.ratio <= min(1.0, ok[0].ratio * 1.05)][:_FINALISTS]
        if not near:
            return True, self._facts.default
        finalists = [_Candidate(dict(point.config), self._order.get(point.text, len(self._order))) for point in near]
        self._report("confirm")
        self._default.samples = []
        self._compile_limit = max(self._compile_limit, 5.0)
        ready = self._admit(finalists)
        contenders = [self._default, *ready]
        for _ in range(3):
            self._rounds(contenders, 2 * _rounds_for(self._usual))
            contenders = [found for found in contenders if found.result.ok and found.samples]
            if self._left() <= 0 or all(found.spread <= _SPREAD for found in contenders):
                break
        for found in contenders[1:]:
            point = self._points[config_text(found.config)]
            self._points[point.text] = Point(point.config, "ok", found.seconds, found.seconds / self._default.seconds)
        if any(found.spread > _SPREAD for found in contenders):
            return False, self._facts.default
        best = self._choose([self._points[config_text(found.config)] for found in contenders[1:]])
        return True, best if self._reproduces(best, contenders) else self._facts.default

    def _reproduces(self, best: Mapping[str, Any], contenders: Sequence[_Candidate]) -> bool:
        """Whether a small gain shows again in a fresh process: where tensors come to lie in memory favours one config
        or another by a few percent for as long as they lie there.
        """
        point = self._points.get(config_text(best))
        if point is None or best == self._facts.default or point.ratio < _CLEAR:
            return True
        if self._left() <= 0:
            return False
        (winner,) = (found for found in contenders if found.config == best)
        self._measurer.renew()
        pair = [self._default, winner]
        for found in pair:
            found.samples = []
            found.result = self._check(found)
        if self._default.result.ok and winner.result.ok:
            self._rounds(pair, 2 * _rounds_for(self._usual))
        if not (winner.result.ok and winner.samples and self._default.samples):
            return False
        ratio = winner.seconds / self._default.seconds
        self._points[point.text] = Point(point.config, "ok", winner.seconds, ratio)
        return ratio * (1 + _TIE) < 1.0

    def _choose(self, points: Sequence[Point]) -> dict[str, Any]:
        default = Point(self._facts.default, "ok", math.nan, 1.0)
        contenders = [default, *points]
        fastest = min(point.ratio for point in contenders)
        tied = [point for point in contenders if point.ratio <= fastest * (1 + _TIE)]
        return dict(min(tied, key=lambda point: self._order.get(point.text, len(self._order))).config)


def _repeats_for(seconds: float) -> int:
    """Launches in a sample."""
    return max(1, min(1000, int(_SAMPLE_SECONDS / max(seconds, 1e-7))))


def _rounds_for(seconds: float) -> int:
    """Rounds for launches of this length."""
    return 7 if seconds < 0.02 else 5 if seconds < 0.2 else 3


def _sane(result: Result) -> Result:
    if result.ok and not 0.0 < result.seconds < math.inf:
        return Result("crashed", cause=f"the measured time was {result.seconds}")
    return result


def _line(point: Point) -> tuple[str, str, str]:
    return point.text, point.outcome, point.cause
