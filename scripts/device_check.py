#!/usr/bin/env python3
"""Checks on a real GPU what the tests check without one. Needs no network; takes under eight minutes.

    python scripts/device_check.py [--out FOLDER] [--only STAGE ...]

1. instructions: one tiny kernel for each PTX instruction that the test suite's interpreter models runs on the
   GPU and in the interpreter; results are compared bit for bit (approximate instructions within their
   documented error).
2. tests: ``pytest tests/cuda`` on the GPU.
3. bench: the benchmark rows of operators that have CUDA kernels, of the elementwise ones some of each kind.

``report.json`` and ``report.md`` in the output folder hold everything. The exit status is 0 only if all
stages ran and passed. `--wheels` says which distributions must be at hand where nothing can be fetched;
`--list` prints the instructions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tests.ptx.ptxsim.conformance import Case

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

OPS = (
    *("RMSNormFwdOp", "SiluAndMulFwdOp", "AddFwdOp", "RoPEFwdOp", "RoPENeoxPositionIdsFwdOp"),
    *("ExpFwdOp", "GeluFwdOp", "GtFwdOp", "WhereFwdOp"),
)
STAGES = ("instructions", "tests", "bench")
LIMIT_S = 8 * 60
TESTS_LIMIT_S = 150

#: Distribution -> (module to look for, requirement, why). torch comes with the machine.
WHEELS = {
    "torch": ("torch", "a CUDA build, 2.11 or newer", "tensors, streams"),
    "numpy": ("numpy", ">=2", "the interpreter"),
    "ml_dtypes": ("ml_dtypes", ">=0.5", "bfloat16 in the interpreter"),
    "numba": ("numba", "==0.68.*", "compiling kernels"),
    "llvmlite": ("llvmlite", "==0.50.*", "compiling kernels"),
    "numba-cuda": ("numba_cuda", "==0.30.*", "compiling kernels"),
    "cuda-core": ("cuda.core", ">=1.0", "loading and launching"),
    "cuda-bindings": ("cuda.bindings", ">=13.0", "nvJitLink"),
    "cuda-pathfinder": ("cuda.pathfinder", ">=1.2", "finding the CUDA libraries"),
    "nvidia-nvjitlink": (None, "==13.0.*", "assembling"),
    "nvidia-nvvm": (None, "==13.0.* (or CUDA_HOME of a 13.0 toolkit)", "compiling kernels"),
    "nvidia-cuda-nvrtc": (None, "==13.0.*", "imported by numba-cuda"),
    "nvidia-cuda-runtime": (None, "==13.0.*", "imported by numba-cuda"),
    "pyyaml": ("yaml", ">=6", "the manifest"),
    "diskcache": ("diskcache", ">=5.6.3", "the kernel cache"),
    "filelock": ("filelock", ">=3.13", "the kernel cache"),
    "platformdirs": ("platformdirs", ">=4", "the kernel cache"),
    "optuna": ("optuna", ">=4.9", "the tuner"),
    "typer": ("typer", ">=0.16", "the command line"),
    "rich": ("rich", ">=13", "the command line"),
    "pytest": ("pytest", ">=9", "the tests"),
}


def installed() -> list[tuple[str, str, str | None]]:
    """``(distribution, requirement, version found or None)``."""
    rows = []
    for name, (module, requirement, _) in WHEELS.items():
        try:
            found: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = None
            if module is not None and _importable(module):
                found = "present"
        if found is None and name == "nvidia-nvvm" and os.environ.get("CUDA_HOME"):
            found = f"CUDA_HOME={os.environ['CUDA_HOME']}"
        rows.append((name, requirement, found))
    return rows


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def print_wheels() -> list[str]:
    """Prints what must be at hand; returns what is missing."""
    print("Distributions that must be at hand (pip download --no-deps NAME on a machine with a network):")
    rows = installed()
    for name, requirement, found in rows:
        print(f"  {name:22}{requirement:48}{found or 'MISSING':22}{WHEELS[name][2]}")
    return [name for name, _, found in rows if found is None]


# -- stage 1: instructions -----------------------------------------------------------------------------------


def on_gpu(case: Case) -> np.ndarray:
    """The result of a case on the current GPU."""
    import numpy as np
    import torch
    from cuda.core import LaunchConfig, launch

    from tests.ptx.ptxsim.conformance import BLOCK

    kernel = assembled(case, _gpu_arch()).get_kernel("conform")
    inputs = [torch.from_numpy(array.view(np.uint8).copy()).cuda() for array in case.inputs]
    output = torch.zeros(case.count * case.output.itemsize, dtype=torch.uint8, device="cuda")
    config = LaunchConfig(grid=case.threads // BLOCK, block=BLOCK)
    addresses = [tensor.data_ptr() for tensor in (*inputs, output)]
    launch(torch.cuda.current_stream(), config, kernel, *addresses)
    torch.cuda.synchronize()
    return output.cpu().numpy().view(case.output)


def assembled(case: Case, arch: str) -> Any:
    """The cubin of a case."""
    from cuda.core import Program, ProgramOptions

    return Program(case.ptx, "ptx", ProgramOptions(arch=arch)).compile("cubin")


def _gpu_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def in_interpreter(case: Case) -> np.ndarray:
    """The result of a case in the interpreter."""
    import numpy as np

    from tests.ptx.ptxsim import GlobalMemory, launch
    from tests.ptx.ptxsim.conformance import BLOCK

    memory = GlobalMemory()
    args = [memory.place(array) for array in case.inputs]
    output = memory.place(np.zeros(case.count, case.output), writable=True)
    launch(case.ptx, memory, case.threads // BLOCK, BLOCK, [*args, output])
    return memory.fetch(output, (case.count,), (case.output.itemsize,), case.output)


def check_instructions(out: Path) -> dict[str, Any]:
    """Runs every conformance case on both sides."""
    import numpy as np

    from tests.ptx.ptxsim import conformance

    rows = []
    for case in conformance.cases():
        row: dict[str, Any] = {"instruction": case.name, "ulps": case.ulps}
        try:
            ours, theirs = in_interpreter(case), on_gpu(case)
            wrong = case.mismatches(ours, theirs)
            row["status"] = "MISMATCH" if wrong.any() else "confirmed"
            if wrong.any():
                row["example"] = _example(case, ours, theirs, int(np.argmax(wrong)))
                row["wrong"] = f"{int(wrong.sum())} of {len(wrong)}"
        except Exception as error:  # one bad case must not hide the others
            row["status"] = f"ERROR {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        rows.append(row)
    for row in rows:
        print(f"  {row['status']:12.12}  {row['instruction']}{_detail(row)}")
    (out / "instructions.json").write_text(json.dumps(rows, indent=1))
    confirmed = sum(row["status"] == "confirmed" for row in rows)
    return {"passed": confirmed == len(rows), "confirmed": confirmed, "of": len(rows), "rows": rows}


def _example(case: Case, ours: np.ndarray, theirs: np.ndarray, index: int) -> str:
    per_thread = case.count // case.threads
    sources = [repr(array[index // per_thread]) for array in case.inputs if len(array) >= case.threads]
    return f"element {index}: inputs {', '.join(sources)}: interpreter {ours[index]!r}, GPU {theirs[index]!r}"


def _detail(row: dict[str, Any]) -> str:
    if "example" in row:
        return f"  ({row['wrong']}; {row['example']})"
    return "" if row["status"] == "confirmed" else f"  ({row['status']})"


# -- stages 2 and 3 ------------------------------------------------------------------------------------------


def run_tests(out: Path) -> dict[str, Any]:
    """The CUDA tests, in a process of their own."""
    options = ["-q", "-rs", "--durations=5", "-p", "no:cacheprovider", "--tileops-device", "cuda"]
    return _run([sys.executable, "-m", "pytest", "tests/cuda", *options], out / "tests.log", TESTS_LIMIT_S)


def run_bench(out: Path, seconds: float) -> dict[str, Any]:
    """The benchmark rows, in a process of their own; each row gets its share of `seconds`."""
    from tileops.bench import cases

    rows = sum(len(cases(op)) for op in OPS)
    budget = max(0.2, min(2.0, 0.6 * seconds / max(rows, 1)))
    code = (
        "import sys; from pathlib import Path; from tileops import bench; "
        f"session = bench.run(ops={list(OPS)!r}, show=print, "
        f"against=('torch',), budget={budget!r}, device='cuda', "
        f"json_path=Path({str((out / 'bench.json').resolve())!r})); "
        "sys.exit(len(session.failures) > 0)"
    )
    return _run([sys.executable, "-c", code], out / "bench.log", seconds) | {"rows": rows, "budget_s": budget}


def _run(command: list[str], log: Path, limit: float) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        with log.open("w") as stream:
            status: int | str = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        status = f"stopped after {limit:.0f} s"
    tail = log.read_text(errors="replace").splitlines()[-40:]
    print("\n".join(f"  {line}" for line in tail))
    return {"passed": status == 0, "status": status, "tail": tail}


# -- the report ----------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What the results were obtained on."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {name: found for name, _, found in installed()},
        "commit": commit.stdout.strip() or None,
    }


def write_report(out: Path, report: dict[str, Any]) -> None:
    """``report.json`` and a readable ``report.md``."""
    (out / "report.json").write_text(json.dumps(report, indent=1, default=str))
    lines = [f"# Device check on {report['machine']['gpu']}", ""]
    lines += [f"- {name}: {value}" for name, value in report["machine"].items() if name != "packages"]
    for stage, result in report["stages"].items():
        lines += [
            "",
            f"## {stage}: {'passed' if result['passed'] else 'FAILED'} ({result['seconds']:.0f} s)",
            "",
        ]
        if stage == "instructions" and "rows" in result:
            lines += ["| instruction | status |", "|---|---|"]
            lines += [f"| `{row['instruction']}` | {row['status']}{_detail(row)} |" for row in result["rows"]]
        else:
            lines += ["```", *result.get("tail", [str(result)]), "```"]
    (out / "report.md").write_text("\n".join(lines) + "\n")


def list_instructions() -> None:
    """The instruction forms as rows of a Markdown table, by opcode."""
    from tests.ptx.ptxsim import conformance

    groups: dict[str, list[str]] = {}
    for case in conformance.cases():
        groups.setdefault(case.name.split(".")[0].split(",")[0].split(" ")[0], []).append(case.name)
    for opcode, names in sorted(groups.items()):
        print(f"| {opcode} | {', '.join(f'`{name}`' for name in names)} | unconfirmed |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "device-check")), help="output folder")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, help="stages to run")
    parser.add_argument("--wheels", action="store_true", help="say what must be installed, and stop")
    parser.add_argument("--list", action="store_true", help="print the modelled instructions, and stop")
    options = parser.parse_args()
    if options.list:
        list_instructions()
        return 0
    missing = print_wheels()
    if options.wheels:
        return 0
    if missing:
        print(f"Missing: {', '.join(missing)}. Nothing was checked.")
        return 1
    import torch

    if not torch.cuda.is_available():
        print(f"No CUDA GPU is visible to torch {torch.__version__}. Nothing was checked.")
        return 1
    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "stages": {}}
    for stage in options.only:
        began = time.monotonic()
        left = LIMIT_S - (began - start)
        print(f"\n{stage}: {left:.0f} s left")
        runners = {
            "instructions": lambda: check_instructions(options.out),
            "tests": lambda: run_tests(options.out),
            "bench": lambda: run_bench(options.out, max(left - 10, 10)),  # noqa: B023  # called in this iteration
        }
        try:
            result = runners[stage]()
        except Exception as error:  # the other stages still say something
            result = {"passed": False, "tail": [f"{type(error).__name__}: {error}"]}
            print(f"  {result['tail'][0]}")
        result["seconds"] = time.monotonic() - began
        report["stages"][stage] = result
        write_report(options.out, report)
    passed = all(result["passed"] for result in report["stages"].values())
    print(f"\n{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s; report in {options.out}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
