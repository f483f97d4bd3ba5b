"""Processes that have imported torch already, which takes longer than what most tests do in a process of their own.

A *server* imports torch and nothing of ours, and forks a child for each request. The child is a Python process of its
own: it takes arguments, environment, working directory and files as a new one would, imports the rest itself, and ends
as the interpreter ends. What reads the environment while torch is imported, and what has to do with importing torch,
needs a new process.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

SERVER = """
import json, os, runpy, signal, sys, warnings
import torch

requests = os.fdopen(os.dup(0), "r")
answers = os.fdopen(os.dup(1), "w")
for line in requests:
    given = json.loads(line)
    child = os.fork()
    if child == 0:
        requests.close(); answers.close()
        break
    answers.write(f"{child}\\n"); answers.flush()
    answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n"); answers.flush()
else:
    os._exit(0)

for number, (name, flags) in enumerate(zip(given["files"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
    place = os.open(name, flags)
    os.dup2(place, number)
    os.close(place)
os.environ.clear()
os.environ.update(given["env"])
os.chdir(given["cwd"])
folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
for category in given["errors"]:
    warnings.filterwarnings("error", category=getattr(__builtins__, category))
kind, what, *rest = given["arguments"]
sys.argv = ["-c" if kind == "-c" else what, *rest]
sys.path[:1] = ["", *folders] if kind != "file" else [os.path.dirname(what), *folders]
names = {name: value for name, value in globals().items() if name.startswith("__")}
del requests, answers, line, child, number, name, flags, place, folders, torch
if kind == "-c":
    exec(compile(what, "<string>", "exec"), names)
elif kind == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    runpy.run_path(what, run_name="__main__")
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    outer = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    with server:  # closes its pipes and waits
        server.kill()


def run(
    kind: str,
    what: str,
    *arguments: object,
    env: Mapping[str, str],
    cwd: Path | str | None = None,
    input: str | None = None,
    errors: tuple[str, ...] = (),
    timeout: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a forked process, as `subprocess.run` with captured text.

    Args:
        kind: ``-c``, ``-m`` or ``file``.
        what: the code, the module or the file.
        arguments: the rest of the command line.
        env: the whole environment.
        cwd: working directory.
        input: standard input.
        errors: built-in categories of warnings that are errors, as ``-W error::CATEGORY``.
        timeout: seconds after which the process is killed.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(input or "")
        for file in files[1:]:
            file.touch()
        command = [kind, what, *map(str, arguments)]
        request = {
            "arguments": command,
            "env": dict(env),
            "cwd": str(cwd or os.getcwd()),
            "files": [str(file) for file in files],
            "errors": errors,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        limit = threading.Timer(timeout, os.kill, (int(server.stdout.readline()), signal.SIGKILL))
        limit.start()
        code = int(server.stdout.readline())
        limit.cancel()
        return subprocess.CompletedProcess(command, code, files[1].read_text(), files[2].read_text())
