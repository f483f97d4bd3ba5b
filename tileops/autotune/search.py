"""Which configs to measure next: all of a small space, Optuna's choice in a large one."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tileops.autotune import study
from tileops.autotune.problem import config_text
from tileops.autotune.record import Point
from tileops.autotune.space import Config, TileSpace

if TYPE_CHECKING:
    import optuna

log = logging.getLogger("tileops.autotune")

ENUMERATED = 64
"""Spaces with at most this many valid points are measured whole."""

_TRIES = 20  # proposals in a row that are invalid or known before a random point is taken instead


class Search(Protocol):
    """Proposes configs, each once, and learns from what they took.

    Attributes:
        known: points that need no measuring, from earlier sessions and other processes.
    """

    known: list[Point]

    def ask(self, count: int, patience: float = 0.0) -> list[dict[str, Any]]:
        """Up to `count` configs that have not been proposed or known; fewer where the search is done.

        Where nothing is left but what other processes are working on, waits up to `patience` seconds for these, and
        proposes again what a process that died had begun.
        """
        ...

    def tell(self, point: Point) -> None:
        """Reports what became of a proposed config."""
        ...

    def close(self) -> None:
        """Leaves what was proposed and not reported to others."""
        ...


class Enumeration:
    """Every valid point in the order of the space, except those known."""

    def __init__(self, points: Sequence[dict[str, Any]], known: Sequence[Point], limit: int | None) -> None:
        self.known = list(known)
        skip = {point.text for point in known}
        fresh = (config for config in points if config_text(config) not in skip)
        self._fresh = iter(list(islice(fresh, limit)))

    def ask(self, count: int, patience: float = 0.0) -> list[dict[str, Any]]:
        return list(islice(self._fresh, count))

    def tell(self, point: Point) -> None:
        """An enumeration does not learn."""

    def close(self) -> None:
        """An enumeration shares nothing."""


class TpeSearch:
    """Optuna's tree-structured Parzen estimator over the valid points, without repeats.

    The objective is the time over the default's, so trials of several sessions and machines of one kind
    compare. In a database any number of processes search one study together, each with a random sequence of its own:
    `trials` counts for all of them, give or take what they ask for at the same moment.

    Args:
        points: all valid points.
        space: the space.
        known: what earlier sessions measured; counts towards `trials`.
        trials: points to measure in all.
        seed: of the sampler.
        name: of the study.
        storage: an Optuna storage URL, or the path of a journal file.

    Raises:
        TuningError: the database of `storage` cannot be used.
    """

    def __init__(
        self,
        points: Sequence[dict[str, Any]],
        space: TileSpace,
        known: Sequence[Point],
        trials: int,
        seed: int,
        name: str,
        storage: str | Path,
    ) -> None:
        import optuna

        self._space = space
        self._valid = {config_text(config): config for config in points}
        self._random = random.Random(seed)
        self._trials = trials
        # A parameter's values are offered by index: Optuna accepts no tuples, and takes True for 1.
        self._distributions: dict[str, Any] = {
            parameter: optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for parameter, values in space.parameters.items()
        }
        self._open: dict[str, optuna.Trial] = {}
        self._heart: study.Heart | None = None
        recorded = {point.text: point for point in known if point.text in self._valid}
        if study.is_shared(storage):
            seed ^= int.from_bytes(os.urandom(4), "little")  # equal seeds would propose the same points at once
        with study.quiet():
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=10)
            opened = study.open_storage(storage)
            self._study = optuna.create_study(
                study_name=name, storage=opened, sampler=sampler, load_if_exists=True, direction="minimize"
            )
            if study.is_shared(storage):
                self._heart = study.Heart(opened, name)
            self._recorded = recorded
            self._refresh()
            for text, point in recorded.items():
                if text not in self._studied:
                    self._add(point)
            self._refresh()

    def ask(self, count: int, patience: float = 0.0) -> list[dict[str, Any]]:
        until = time.monotonic() + patience
        with study.quiet():
            while True:
                proposed = self._propose_some(count)
                if proposed or not self._elsewhere or time.monotonic() >= until:
                    return proposed
                time.sleep(0.5)

    def tell(self, point: Point) -> None:
        import optuna

        trial = self._open.pop(point.text, None)
        if trial is None:
            return
        with study.quiet():
            try:
                if point.ok:
                    trial.set_user_attr("seconds", point.seconds)
                    self._study.tell(trial, point.ratio)
                else:
                    trial.set_user_attr("outcome", point.outcome)
                    trial.set_user_attr("cause", point.cause)
                    self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError) as error:
                # Taken for dead (a suspended machine, a database that was away): another process does it again.
                log.warning("trial %d of a shared study was given up by others: %s", trial.number, error)
            if self._heart is not None:
                self._heart.close_trial(trial.number)

    def close(self) -> None:
        import optuna

        with study.quiet():
            for trial in self._open.values():
                # Cut off by the budget: another session may measure it.
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
        self._open.clear()
        if self._heart is not None:
            self._heart.stop()

    def _propose_some(self, count: int) -> list[dict[str, Any]]:
        import optuna

        if self._heart is not None:
            optuna.storages.fail_stale_trials(self._study)
            self._refresh()
        proposed = [self._take(trial) for trial in self._again(count)]
        while len(proposed) < count and self._left > 0 and len(self._taken) < len(self._valid):
            proposed.append(self._propose())
        return proposed if self._heart is None else self._without_doubles(proposed)

    def _without_doubles(self, proposed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """`proposed` without what another process asked for at the same moment; the trial that came first stays."""
        import optuna

        state = optuna.trial.TrialState
        first: dict[str, int] = {}
        for trial in self._study.get_trials(deepcopy=False, states=(state.RUNNING, state.COMPLETE)):
            first.setdefault(config_text(self._config(trial.params)), trial.number)
        kept = []
        for config in proposed:
            text = config_text(config)
            ours = self._open[text].number
            if first.get(text, ours) >= ours:
                kept.append(config)
                continue
            self._study.tell(self._open.pop(text), state=state.FAIL)
        return kept

    def _again(self, count: int) -> Iterator[optuna.Trial]:
        """The trials of dead processes, which Optuna has queued."""
        import optuna

        for _ in range(count):
            if not self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
                return
            trial = self._study.ask(self._distributions)
            text = config_text(self._config(trial.params))
            if text in self._valid and text not in self._studied and text not in self._open:
                yield trial
            else:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _propose(self) -> dict[str, Any]:
        import optuna

        for _ in range(_TRIES):
            trial = self._study.ask(self._distributions)
            text = config_text(self._config(trial.params))
            if text in self._valid and text not in self._taken:
                break
            # A failed trial does not attract the sampler, so it looks elsewhere the next time.
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            text = self._random.choice([text for text in self._valid if text not in self._taken])
            self._study.enqueue_trial(self._indices(self._valid[text]))
            trial = self._study.ask(self._distributions)
        return self._take(trial)

    def _take(self, trial: optuna.Trial) -> dict[str, Any]:
        config = self._config(trial.params)
        text = config_text(config)
        self._taken.add(text)
        self._left -= 1
        self._open[text] = trial
        if self._heart is not None:
            self._heart.open(trial.number)
        return config

    def _refresh(self) -> None:
        """Reads what the study holds, from this process and others: what is measured, and what is under way."""
        import optuna

        state = optuna.trial.TrialState
        measured: dict[str, Point] = {}
        running: set[str] = set()
        for trial in self._study.get_trials(deepcopy=False, states=(state.COMPLETE, state.FAIL, state.RUNNING)):
            config = self._config(trial.params)
            text = config_text(config)
            if text not in self._valid:
                continue
            if trial.state == state.RUNNING:
                running.add(text)
            elif trial.state == state.COMPLETE:
                measured[text] = Point(config, "ok", trial.user_attrs.get("seconds", math.nan), trial.values[0])
            elif "outcome" in trial.user_attrs:
                outcome, cause = trial.user_attrs["outcome"], trial.user_attrs.get("cause", "")
                measured.setdefault(text, Point(config, outcome, cause=cause))
        self._studied = measured
        self._elsewhere = running - measured.keys() - self._open.keys()
        self.known = list({**measured, **self._recorded}.values())
        self._taken = {*measured, *self._recorded, *self._elsewhere, *self._open}
        self._left = self._trials - len(self._taken)

    def _add(self, point: Point) -> None:
        import optuna

        state = optuna.trial.TrialState.COMPLETE if point.ok else optuna.trial.TrialState.FAIL
        attributes = {"seconds": point.seconds} if point.ok else {"outcome": point.outcome, "cause": point.cause}
        self._study.add_trial(
            optuna.trial.create_trial(
                params=self._indices(point.config),
                distributions=self._distributions,
                value=point.ratio if point.ok else None,
                state=state,
                user_attrs=attributes,
            )
        )

    def _config(self, indices: Config) -> dict[str, Any]:
        return {
            name: values[indices[name]]
            for name, values in self._space.parameters.items()
            if name in indices and indices[name] < len(values)
        }

    def _indices(self, config: Config) -> dict[str, int]:
        return {
            name: next(
                i for i, value in enumerate(values) if type(value) is type(config[name]) and value == config[name]
            )
            for name, values in self._space.parameters.items()
        }
