"""Which configs to measure next: all of a small space, Optuna's choice in a large one."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Up to `count` configs that have not been proposed or known; fewer where the search is done."""
        ...

    def tell(self, point: Point) -> None:
        """Reports what became of a proposed config."""
        ...


class Enumeration:
    """Every valid point in the order of the space, except those known."""

    def __init__(self, points: Sequence[dict[str, Any]], known: Sequence[Point], limit: int | None) -> None:
        self.known = list(known)
        skip = {point.text for point in known}
        fresh = (config for config in points if config_text(config) not in skip)
        self._fresh = iter(list(islice(fresh, limit)))

    def ask(self, count: int) -> list[dict[str, Any]]:
        return list(islice(self._fresh, count))

    def tell(self, point: Point) -> None:
        """An enumeration does not learn."""


class TpeSearch:
    """Optuna's tree-structured Parzen estimator over the valid points, without repeats.

    The objective is the time over the default's, so trials of several sessions and machines of one kind
    compare.

    Args:
        points: all valid points.
        space: the space.
        known: what earlier sessions measured; counts towards `trials`.
        trials: points to measure in all.
        seed: of the sampler.
        name: of the study.
        storage: an Optuna storage URL, or the path of a journal file.
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
        # A parameter's values are offered by index: Optuna accepts no tuples, and takes True for 1.
        self._distributions: dict[str, Any] = {
            parameter: optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for parameter, values in space.parameters.items()
        }
        with _quiet(optuna):
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=10)
            self._study = optuna.create_study(
                study_name=name,
                storage=_open_storage(optuna, storage),
                sampler=sampler,
                load_if_exists=True,
                direction="minimize",
            )
            studied = self._studied(optuna)
            recorded = {point.text: point for point in known if point.text in self._valid}
            for text, point in recorded.items():
                if text not in studied:
                    self._add(optuna, point)
        self.known = list({**studied, **recorded}.values())
        self._taken = studied.keys() | recorded.keys()
        self._left = trials - len(self._taken)
        self._open: dict[str, optuna.Trial] = {}

    def ask(self, count: int) -> list[dict[str, Any]]:
        import optuna

        proposed: list[dict[str, Any]] = []
        with _quiet(optuna):
            while len(proposed) < count and self._left > 0 and len(self._taken) < len(self._valid):
                proposed.append(self._propose(optuna))
                self._left -= 1
        return proposed

    def tell(self, point: Point) -> None:
        import optuna

        trial = self._open.pop(point.text, None)
        if trial is None:
            return
        with _quiet(optuna):
            if point.ok:
                trial.set_user_attr("seconds", point.seconds)
                self._study.tell(trial, point.ratio)
            else:
                trial.set_user_attr("outcome", point.outcome)
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _propose(self, optuna: Any) -> dict[str, Any]:
        for _ in range(_TRIES):
            trial = self._study.ask(self._distributions)
            config = self._config(trial.params)
            text = config_text(config)
            if text in self._valid and text not in self._taken:
                break
            # A failed trial does not attract the sampler, so it looks elsewhere the next time.
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            text = self._random.choice([text for text in self._valid if text not in self._taken])
            self._study.enqueue_trial(self._indices(self._valid[text]))
            trial = self._study.ask(self._distributions)
            config = self._config(trial.params)
            text = config_text(config)
        self._taken.add(text)
        self._open[text] = trial
        return config

    def _studied(self, optuna: Any) -> dict[str, Point]:
        """The points that the study holds already, measured by this process or by others."""
        found = {}
        for trial in self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
            config = self._config(trial.params)
            if config_text(config) in self._valid:
                seconds = trial.user_attrs.get("seconds", math.nan)
                found[config_text(config)] = Point(config, "ok", seconds, trial.values[0])
        return found

    def _add(self, optuna: Any, point: Point) -> None:
        failed = optuna.trial.TrialState.FAIL
        self._study.add_trial(
            optuna.trial.create_trial(
                params=self._indices(point.config),
                distributions=self._distributions,
                value=point.ratio if point.ok else None,
                state=optuna.trial.TrialState.COMPLETE if point.ok else failed,
            )
        )

    def _config(self, indices: Config) -> dict[str, Any]:
        return {name: values[indices[name]] for name, values in self._space.parameters.items() if name in indices}

    def _indices(self, config: Config) -> dict[str, int]:
        return {
            name: next(
                i for i, value in enumerate(values) if type(value) is type(config[name]) and value == config[name]
            )
            for name, values in self._space.parameters.items()
        }


def _open_storage(optuna: Any, storage: str | Path) -> Any:
    if isinstance(storage, str):
        return storage
    from optuna.storages.journal import JournalFileBackend

    try:
        storage.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return optuna.storages.JournalStorage(JournalFileBackend(str(storage)))
    except Exception as error:  # a damaged or unwritable journal: search without one
        log.warning("the study is not kept: cannot use %s (%s)", storage, error)
        return None


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keeps Optuna from printing a line for each trial; the caller's verbosity comes back."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
