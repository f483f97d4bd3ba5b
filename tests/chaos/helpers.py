"""Processes for the chaos tests.

A *nursery* is one process that has imported everything and forks a child for each attempt, because an attempt in a
process of its own would spend seconds on imports. Children are real processes: they are killed, run out of disk, and
share nothing but the cache directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.store.helpers import ROOT, environment

ROUNDS = int(os.environ.get("TILEOPS_CHAOS_ROUNDS", "30"))
"""Rounds of killing; `make chaos` sets 500."""

THOROUGH = ROUNDS > 100
"""Whether there is time for every kind of damage."""

CALL = '''
import os, sys, warnings

def call(before=lambda: None):
    """Runs two operators in a forked child: the right results, and how many warnings; or the exception."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            from tileops import settings
            settings._current = None
            before()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                import torch
                from tileops.elementwise import SiluAndMulFwdOp
                from tileops.norm import RMSNormFwdOp
                x = torch.full((3, 8), 2.0)
                y = RMSNormFwdOp(normalized_shape=(8,), eps=0.0)(x, torch.ones(8))
                z = SiluAndMulFwdOp()(x)
                from tileops import jit
                from tileops.jit.disk import _at_exit
                _at_exit()
            right = bool((y == 1).all()) and torch.allclose(z, torch.nn.functional.silu(x[:, :4]) * 2)
            found = [str(item.message) for item in caught if "Cache" in item.category.__name__]
            said = f"right={right} compiled={jit.stats().compiled} warnings={len(found)} {found}"
        except BaseException as error:
            said = f"raised {type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said or f"died with {status}"

import numba, torch, diskcache, filelock
import tileops.elementwise, tileops.norm
import tileops.jit.lang, tileops.jit.cpu.kernel
torch.set_num_threads(1)
'''
"""Code of a nursery: ``call(before)``."""


def nursery(code: str, *arguments: object, namespace: bool = False, timeout: float = 600, **env: str) -> Any:
    """What the JSON of a fresh process says that runs `code`.

    Args:
        code: Python that prints one JSON value as its last line.
        arguments: its ``sys.argv[1:]``.
        namespace: run it where it may mount file systems of its own.
        timeout: seconds.
        env: environment variables.
    """
    command = [sys.executable, "-c", CALL + code, *map(str, arguments)]
    if namespace:
        command = ["unshare", "--user", "--map-root-user", "--mount", *command]
    done = subprocess.run(
        command,
        env=environment({"OMP_NUM_THREADS": "1", **env}),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def may_mount(place: Path) -> bool:
    """Whether this machine lets a process mount file systems in a namespace of its own."""
    place.mkdir(exist_ok=True)
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", str(place)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
