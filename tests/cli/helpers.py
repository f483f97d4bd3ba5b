"""Running the command, and scripts, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import processes
from tests.store.helpers import environment


def tileops(
    *arguments: object,
    cache: Path | None = None,
    code: int = 0,
    stdin: str | None = None,
    timeout: float = 240.0,
    **env: str,
) -> str:
    """Standard output of ``tileops <arguments>``; standard error where an exit code but 0 is expected."""
    extra = dict(env)
    if cache is not None:
        extra["TILEOPS_CACHE_DIR"] = str(cache)
    done = processes.run("-m", "tileops.cli.main", *arguments, env=environment(extra), timeout=timeout, input=stdin)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def tileops_json(*arguments: object, **options: Any) -> Any:
    """What ``tileops <arguments> --json`` printed."""
    return json.loads(tileops(*arguments, "--json", **options))


def script(path: Path, *arguments: object, cache: Path | None = None, code: int = 0, **env: str) -> str:
    """Standard output of a script in a fresh process; standard error where an exit code but 0 is expected."""
    extra = {**env, **({} if cache is None else {"TILEOPS_CACHE_DIR": str(cache)})}
    done = processes.run("file", str(path), *arguments, env=environment(extra), errors=("UserWarning",))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


SMALL_APPLICATION = """
import torch
from tileops.norm import RMSNormFwdOp

print(RMSNormFwdOp(normalized_shape=(64,), eps=0.0)(torch.full((3, 64), 2.0), torch.ones(64)).sum().item())
"""
"""One operator; it prints ``192.0``."""

APPLICATION = """
import torch
from tileops.elementwise import SiluAndMulFwdOp
from tileops.gemm import GemmFwdOp, pack
from tileops.norm import RMSNormFwdOp

x, w = torch.ones(3, 64), torch.full((64, 64), 0.5)
held = pack(w)
y = GemmFwdOp()(RMSNormFwdOp(normalized_shape=(64,), eps=0.0)(x, torch.ones(64)), w)
print(SiluAndMulFwdOp()(y).shape, y[0, 0].item())
"""
"""A small application: three operators and a packed weight."""
