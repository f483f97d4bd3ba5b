"""Prints what compiling and loading the kernels of a family cost here: ``python tests/ops/measure_compiles.py``.

Every kernel that a row of the manifest needs, and those of transposed operands. The budgets, after the first kernel of
a process: 0.3 s to compile, 3 ms to load from the store. Passes of the garbage collector, which come now and then and
grow with all else that the process holds, are counted apart.

Arguments: families (default: elementwise rope), ``--dtypes`` to restrict them: ``--dtypes float32,bfloat16``.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

BUDGETS = {"compile": 0.3, "load": 0.003}


def _programs(families: list[str], dtypes: set[str]) -> Iterator[tuple[str, Any]]:
    """The distinct programs, each with the name of an operator and case that needs it."""
    from tileops import manifest
    from tileops.kernels.base import TensorSpec
    from tileops.ops.planned import PlannedCall, device_for, planned_calls

    def transposed(spec: Any) -> Any:
        if not isinstance(spec, TensorSpec) or len(spec.shape) < 2:
            return spec
        *outer, rows, _columns = spec.shape
        step = spec.strides[-3] if outer else 0
        outer_steps = [step * 1] if len(outer) == 1 else list(spec.strides[:-2])
        return dataclasses.replace(spec, strides=(*outer_steps, 1, rows))

    seen = set()
    for name, entry in sorted(manifest.load_all().items()):
        if entry.family not in families or not entry.implemented:
            continue
        cls = getattr(importlib.import_module(f"tileops.{entry.family}"), name)
        for planned in planned_calls(cls, device_for(None)):
            if not isinstance(planned, PlannedCall):
                continue
            specs = [value for value in vars(planned.call).values() if isinstance(value, TensorSpec)]
            if dtypes and specs[0].dtype not in dtypes:
                continue
            first = next(field for field, value in vars(planned.call).items() if value is specs[0])
            calls = [planned.call, dataclasses.replace(planned.call, **{first: transposed(specs[0])})]
            for call in calls:
                if planned.kernel.refusal(call) is not None:
                    continue
                for program in planned.kernel.programs(call, planned.kernel.default_config(call)).values():
                    if program not in seen:
                        seen.add(program)
                        form = program.factory.rpartition(":")[2]
                        yield f"{name} {specs[0].dtype} {form} {dict(program.config).get('kinds', '')}", program


def _measure() -> None:
    """In a child: a line for each program with its name and seconds: of the processor, of the clock, and those of the
    processor that went into the garbage collector.
    """
    from tileops import jit

    collecting = 0.0

    def collects(phase: str, _: Any) -> None:
        nonlocal collecting
        collecting += time.process_time() * (1 if phase == "stop" else -1)

    gc.callbacks.append(collects)
    for number, (name, program) in enumerate(pickle.load(sys.stdin.buffer)):
        collecting = 0.0
        cpu, clock = time.process_time(), time.perf_counter()
        jit.get_entry(program)
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        if number:
            print(f"{cpu - collecting}\t{clock}\t{collecting}\t{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=["elementwise", "rope"])
    parser.add_argument("--dtypes", default="")
    given = parser.parse_args()
    programs = list(_programs(given.families, set(filter(None, given.dtypes.split(",")))))
    print(f"{len(programs)} kernels")
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, "TILEOPS_CACHE_DIR": store}
        for what, budget in BUDGETS.items():
            child = subprocess.run(
                [sys.executable, __file__, "--child"],
                input=pickle.dumps(programs),
                env=environment,
                capture_output=True,
                check=True,
            )
            lines = [line.split("\t") for line in child.stdout.decode().splitlines()]
            times = sorted(
                ([*(1e3 * float(number) for number in numbers), name] for *numbers, name in lines), reverse=True
            )
            total, over = sum(cpu for cpu, *_ in times), sum(cpu > 1e3 * budget for cpu, *_ in times)
            print(f"{what}: mean {total / len(times):.2f} ms of the processor, {over} over {1e3 * budget:g} ms")
            passes = [collecting for _, _, collecting, _ in times]
            print(f"  collecting garbage: {sum(passes):.0f} ms, {max(passes):.1f} ms beside one kernel at most")
            for cpu, clock, collecting, name in times[:10]:
                print(f"  {cpu:8.2f} ms ({clock:.2f} by the clock, {collecting:.2f} collecting)  {name}")


if __name__ == "__main__":
    if "--child" in sys.argv:
        _measure()
    else:
        main()
