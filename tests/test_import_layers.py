"""The structure of the package, held: which layer imports which, who may touch compilers and private names,
what an import costs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tileops"
FAMILIES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "settings", "errors"))

#: layer -> the layers that it may import at run time (besides itself, errors and settings). A dotted name
#: allows one module.
ALLOWED = {
    "errors": (),
    "settings": (),
    "manifest": (),
    "perf": (),
    "jit": (),
    "autotune": ("jit",),
    "kernels": ("jit", "autotune.space"),
    "backend": ("kernels.base",),
    "ops": ("kernels", "manifest", "perf.formulas", "autotune", "backend", "jit"),
    "<family>": ("ops",),
    "workloads": ("ops", "manifest", "kernels", "jit", "backend", "autotune", "<family>"),
    "testing": ("workloads", "ops", "manifest", "backend", "<family>"),
    "bench": ("workloads", "ops", "manifest", "perf", "kernels", "jit", "backend", "autotune", "<family>"),
    "cli": None,  # everything
}

#: files that do import against the direction, inside functions of one purpose
EXCEPTIONS = {
    "manifest/code_checks.py": "ops",  # compares entries with classes; loaded by the validator alone
}

#: names that look private and are documented
DOCUMENTED = ("torch._check", "torch._dynamo", "torch._inductor.config", "torch.ops.")

#: files that may read private names of other packages, and whose
PRIVATE = {
    "jit/_numba.py": ("numba", "llvmlite"),
    "jit/_numba_cuda.py": ("numba", "numba_cuda"),
    "jit/cpu/_torch_tensors.py": ("torch",),
    "ops/_torch_guards.py": ("torch",),
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer(module: str) -> str:
    """Layer of a dotted module below tileops, for example "ops.base" -> "ops"."""
    first = module.partition(".")[0]
    return "<family>" if first in FAMILIES else first


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node outside ``if TYPE_CHECKING:`` blocks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (found for item in node.orelse for found in ast.walk(item))
            continue
        yield node
        yield from run_time_nodes(node)


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports at run time, anywhere in it, with the line. `from a import b` gives both a
    and a.b.
    """
    for node in run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            for name in node.names:
                yield f"{node.module}.{name.name}", node.lineno


def permitted(module: str, allowed: tuple[str, ...]) -> bool:
    for item in allowed:
        if "." in item and (module == item or module.startswith(item + ".")):
            return True
        if "." not in item and layer(module) == item:
            return True
    return False


def test_imports_point_one_way() -> None:
    wrong = []
    for path in sources():
        own = relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if own == "__init__":
            continue
        allowed = ALLOWED[layer(own)]
        if allowed is None:
            continue
        for module, line in imported(path):
            if not module.startswith("tileops."):
                continue
            target = module.removeprefix("tileops.")
            if layer(target) in (layer(own), "errors", "settings", "__version__") or permitted(target, allowed):
                continue
            if EXCEPTIONS.get(relative(path)) == layer(target):
                continue
            wrong.append(f"{relative(path)}:{line}: {layer(own)} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["manifest", "perf/formulas"])
def test_the_manifest_needs_neither_torch_nor_numba(package: str) -> None:
    root = PACKAGE / package
    wrong = [
        f"{relative(path)}:{line}: {module}"
        for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root])
        for module, line in imported(path)
        if module.partition(".")[0] in ("torch", "numba", "llvmlite")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_jit_uses_llvmlite_and_numba_typing() -> None:
    wrong = []
    for path in sources():
        if relative(path).startswith("jit/"):
            continue
        for module, line in imported(path):
            top = module.partition(".")[0]
            if top == "llvmlite" or (
                top in ("numba", "numba_cuda") and module.partition(".")[2].startswith(("core", "extending", "cuda."))
            ):
                wrong.append(f"{relative(path)}:{line}: {module}")
    assert not wrong, "\n".join(wrong)


def _private_uses(path: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """Private names of `packages` that a file reads: imported ones, and attributes of imported modules."""
    tree = ast.parse(path.read_text())
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] in packages:
                    aliases[name.asname or name.name.partition(".")[0]] = name.name
                    private = any(_is_private(part) for part in name.name.split("."))
                    if private and not _documented(name.name):
                        yield f"{relative(path)}:{node.lineno}: import {name.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in packages:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                private = any(_is_private(part) for part in f"{node.module}.{name.name}".split("."))
                if private and not _documented(f"{node.module}.{name.name}"):
                    yield f"{relative(path)}:{node.lineno}: from {node.module} import {name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            chain = ast.unparse(node)
            if chain.partition(".")[0] in aliases and not _documented(chain):
                yield f"{relative(path)}:{node.lineno}: {chain}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _documented(chain: str) -> bool:
    return any(chain.startswith(name) for name in DOCUMENTED)


def test_private_names_of_other_packages_stay_in_few_files() -> None:
    wrong = [
        use
        for path in sources()
        for use in _private_uses(path, ("torch", "numba", "numba_cuda", "llvmlite"))
        if relative(path) not in PRIVATE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", PRIVATE)
def test_files_with_private_names_state_versions(file: str) -> None:
    source = (PACKAGE / file).read_text()
    assert "SUPPORTED" in source, f"{file}: names the versions in which its private names were checked (SUPPORTED)"


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_imports_load_no_compiler_and_no_tuner() -> None:
    statements = [
        "import torch",
        "import tileops",
        *(f"import tileops.{family}" for family in FAMILIES),
        "import tileops.norm as n; n.RMSNormFwdOp((4,))",
    ]
    code = "import sys\n" + "".join(f"{statement}\nprint(*sys.modules)\n" for statement in statements)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    of_torch, *after = [{name.partition(".")[0] for name in line.split()} for line in done.stdout.splitlines()]
    unwanted = {"numba", "numba_cuda", "optuna", "cuda", "triton", "diskcache", "rich", "typer"}
    for statement, loaded in zip(statements[1:], after, strict=True):
        assert not (loaded - of_torch) & unwanted, statement  # torch may load CUDA bindings itself


def test_import_tileops_does_not_even_load_torch() -> None:
    assert not _modules_after("import tileops") & {"torch", "numpy", "yaml"}


def test_family_modules_offer_what_the_manifest_declares() -> None:
    import importlib

    from tileops import manifest

    for family in FAMILIES:
        module = importlib.import_module(f"tileops.{family}")
        declared = [name for name, entry in manifest.load_family(family).items() if entry.implemented]
        assert sorted(module.__all__) == sorted(declared)
        assert all(getattr(module, name).__name__ == name for name in module.__all__)
