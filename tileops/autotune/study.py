"""Optuna studies that several processes and machines may share.

A study lies in a local journal file, or in a database (``postgresql://...``). In a database every open trial has a
heartbeat: what a worker that died had begun is failed after a minute and tried again by another.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tileops.errors import TuningError

log = logging.getLogger("tileops.autotune")

HEARTBEAT_SECONDS = 15
GRACE_SECONDS = 60
"""A trial without a heartbeat for so long belongs to a worker that has died."""

_RETRIES = 3


def is_shared(storage: str | Path) -> bool:
    """Whether `storage` is a database, which other processes may use at the same time, rather than a file of ours."""
    return isinstance(storage, str) and "://" in storage


def open_storage(storage: str | Path) -> Any:
    """An Optuna storage, from a database URL or the path of a journal file.

    Returns:
        The storage; None, which keeps a study in memory, where the journal cannot be used.

    Raises:
        TuningError: the database cannot be reached.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if is_shared(storage):
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES)
        url = str(storage)
        if url.startswith("postgresql://"):  # SQLAlchemy's own choice of a driver differs between its versions
            url = url.replace("://", "+psycopg://", 1)
        try:
            return optuna.storages.RDBStorage(
                url,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=GRACE_SECONDS,
                heartbeat_stale_trial_callback=retry,
            )
        except ImportError as error:
            raise TuningError(f"{_public(url)}: {error} For PostgreSQL: pip install 'tileops[fleet]'") from error
        except Exception as error:  # whatever the driver raises
            text = " ".join(str(error).split())[:300]
            raise TuningError(
                f"the studies at {_public(url)} cannot be used: {type(error).__name__}: {text}"
            ) from error
    path = Path(storage)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    except Exception as error:  # a damaged or unwritable journal: search without one
        log.warning("the study is not kept: cannot use %s (%s)", path, error)
        return None


def _public(url: str) -> str:
    """`url` without a password."""
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True)


class Heart:
    """Tells a shared storage, from a thread, that this process still works on its open trials."""

    def __init__(self, storage: Any, study_name: str) -> None:
        self._storage = storage
        self._study_id = storage.get_study_id_from_name(study_name)
        self._open: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tileops-heartbeat", daemon=True)
        self._thread.start()

    def open(self, number: int) -> None:
        """A trial has begun."""
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        self._storage.record_heartbeat(trial)
        self._open.add(trial)

    def close_trial(self, number: int) -> None:
        """A trial has ended."""
        self._open.discard(self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number))

    def stop(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join(timeout=HEARTBEAT_SECONDS)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            for trial in tuple(self._open):
                try:
                    self._storage.record_heartbeat(trial)
                except Exception as error:  # a database that is away for a moment
                    log.debug("no heartbeat of trial %d: %s", trial, error)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Optuna from printing a line for each trial; the caller's verbosity comes back."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Heartbeats are experimental, and meant for `Study.optimize`; ours come from `Heart`.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            yield
    finally:
        optuna.logging.set_verbosity(before)
