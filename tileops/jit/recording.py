"""The file that ``TILEOPS_RECORD`` names: who writes lines, and the lines of programs.

Operators write a line for each distinct call (`tileops.ops.recording`). A program that an application compiles by
itself, outside any operator, is a line of its own:

    {"program": {"args": ["ptr", "i64"], "config": {"dtype": "bf16"}, "factory": "package._kernels:rows", ...}}
"""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from tileops import settings
from tileops.jit.program import Program, Value

_log = logging.getLogger("tileops.jit")
_written: set[tuple[str, str]] = set()


def record_program(program: Program) -> None:
    """Appends a program to the file that the setting names, once per process; does nothing without the setting."""
    path = settings.current().record
    if path is not None:
        append(path, {"program": describe(program)})


def append(path: str, content: Mapping[str, Any]) -> None:
    """Appends a line of JSON, once per process. A file that cannot be written costs a log line, not a call."""
    line = json.dumps(content, sort_keys=True)
    if (path, line) in _written:
        return
    _written.add((path, line))
    try:
        # One write to a file opened for appending: lines of several processes never mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("TILEOPS_RECORD=%s: the call is not recorded: %s", path, error)


def forget(path: str) -> None:
    """What was written to a file is written again."""
    _written.difference_update({known for known in _written if known[0] == path})


def describe(program: Program) -> dict[str, Any]:
    """Plain values that `parse` reads."""
    facts: dict[str, Any] = {
        "factory": program.factory,
        "config": dict(program.config),
        "args": program.args,
        "device": program.device,
    }
    if program.device == "cuda":
        return {**facts, "block": program.block, "dynamic_smem": program.dynamic_smem}
    return {**facts, "grain": program.grain}


def parse(facts: Mapping[str, Any]) -> Program:
    """The program of a line.

    Raises:
        ValueError, KeyError, TypeError: no program has these facts.
    """
    if facts["device"] not in ("cpu", "cuda"):
        raise ValueError(f"device {facts['device']!r}: expected cpu or cuda")
    config = [(name, _value(value)) for name, value in sorted(facts["config"].items())]
    return Program(
        str(facts["factory"]),
        tuple(config),
        tuple(facts["args"]),
        device=facts["device"],
        block=int(facts.get("block", 0)),
        dynamic_smem=int(facts.get("dynamic_smem", 0)),
        grain=int(facts.get("grain", 1)),
    )


def _value(value: Any) -> Value:
    return tuple(map(_value, value)) if isinstance(value, list) else value


def refusal(program: Program) -> str | None:
    """Why a program of a file is not compiled, or None.

    Compiling runs the factory, with arguments that the file gives. A file of calls must not be able to run anything
    but kernels: the factory has to be a function of a module that imports the vocabulary. Nothing is run to find out
    but the packages around that module.
    """
    module, _, function = program.factory.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return f"there is no module {module}; install its package or put it on PYTHONPATH"
    if spec.origin is None or not spec.has_location:
        return f"{module} has no Python source"
    try:
        with open(spec.origin, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError) as error:
        return f"{module} has no Python source: {error}"
    if not any(_imports_vocabulary(node) for node in ast.walk(tree)):
        return f"{module} does not import tileops.jit.lang, so it is no module of kernels"
    if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
        return f"{module} defines no function {function}"
    return None


def _imports_vocabulary(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_vocabulary(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return any(_is_vocabulary(f"{node.module}.{alias.name}") for alias in node.names)
    return False


def _is_vocabulary(name: str) -> bool:
    return f"{name}.".startswith("tileops.jit.lang.")
