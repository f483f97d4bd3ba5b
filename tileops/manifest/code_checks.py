"""Checks that need code: an implemented entry against its class, public modules, reference APIs, benchmarks.

The only module of the manifest that imports operator classes, and with them torch; the static validator runs
without it. Code-dependent checks skip spec-only entries, never one op alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tileops.manifest.branch import Branch
from tileops.manifest.diagnostics import Diagnostic
from tileops.manifest.entry import Entry
from tileops.manifest.plan import plan_branch
from tileops.manifest.signature import REQUIRED
from tileops.ops.codegen.emit import emit_call_check
from tileops.ops.signature_codegen import signature_for

Finding = tuple[str, str, str]

#: Constructor parameters that the code adds to every op.
POLICY_PARAMETERS = ("target",)

#: A file of benchmarks has to go through these.
BENCH_API = ("cases", "Runner")


def check_code(entries: Iterable[Entry], *, whole: bool, references: bool = False) -> list[Diagnostic]:
    """Compares entries with the code.

    Args:
        entries: parsed entries.
        whole: they are the whole manifest, so that ``__all__`` and the benchmark files are checked too.
        references: a reference API whose package is not installed is an error.
    """
    entries = list(entries)
    found: list[Diagnostic] = []
    for entry in entries:
        findings = [*_check_ref_api(entry, references)]
        if entry.implemented and not entry.problems:
            findings += _check_class(entry)
        found += [Diagnostic(level, entry.file, entry.name, field, text) for level, field, text in findings]
    if whole:
        found += _check_families(entries)
        found += _check_benchmarks()
    return found


# --- reference APIs ---


def _check_ref_api(entry: Entry, required: bool) -> Iterator[Finding]:
    """Where the reference's package is installed, the name exists in it."""
    if entry.ref_api is None:
        return
    top = entry.ref_api.split(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top) is None:
        if required:
            yield "schema", "ref_api", f"the package {top!r} of {entry.ref_api} is not installed; install it"
        return
    if not _resolves(entry.ref_api):
        yield "schema", "ref_api", f"{entry.ref_api} does not exist in the installed {top}; correct the name"


def _resolves(path: str) -> bool:
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for name in parts[split:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


# --- classes ---


def _family_module(family: str) -> ModuleType | str:
    """The public module of a family, or why it cannot be imported."""
    try:
        return importlib.import_module(f"tileops.{family}")
    except Exception as error:  # whatever a module raises while it loads: a finding, never a crash
        return f"the public module tileops.{family} cannot be imported ({error}); repair it"


def _check_class(entry: Entry) -> Iterator[Finding]:
    module = _family_module(entry.family)
    if isinstance(module, str):
        yield "schema", "family", module
        return
    cls = getattr(module, entry.name, None)
    if cls is None:
        yield "schema", "status", f"tileops.{entry.family} has no {entry.name}; export it or write spec-only"
        return
    if cls.__name__ != entry.name:
        yield "schema", "key", f"the class is named {cls.__name__}; key and class name are equal"
    yield from _check_init(entry, cls)
    yield from _check_forward(entry, cls)
    yield from _check_composition(entry, cls)
    yield from _check_boundary(entry, cls)
    yield from _check_docstring(entry, cls)


def _check_init(entry: Entry, cls: type) -> Iterator[Finding]:
    """Same parameters, order, defaults and keyword-only marks; the code adds only policy parameters."""
    target = inspect.signature(cls).parameters.get("target")
    if target is None or target.kind is not inspect.Parameter.KEYWORD_ONLY or target.default is not None:
        yield "signature", "signature.params", "__init__ takes the keyword-only target=None of every op; add it"
    added = {*POLICY_PARAMETERS, *getattr(cls, "injected_parameters", ())}
    actual = {
        name: param
        for name, param in list(inspect.signature(cls).parameters.items())
        if name not in added or name in entry.signature.params
    }
    declared = signature_for(entry).params
    names = [slot.name for slot in declared]
    if list(actual) != names:
        yield (
            "signature",
            "signature.params",
            f"__init__ takes ({', '.join(actual)}), the entry declares ({', '.join(names)}); make the code agree",
        )
        return
    for slot in declared:
        param, field = actual[slot.name], f"signature.params.{slot.name}"
        kw_only = param.kind is inspect.Parameter.KEYWORD_ONLY
        if kw_only != slot.kw_only or param.kind is inspect.Parameter.POSITIONAL_ONLY:
            wanted = "keyword-only" if slot.kw_only else "positional or keyword"
            yield "signature", f"{field}.kw_only", f"in __init__ it must be {wanted}; make the code agree"
        default = REQUIRED if param.default is inspect.Parameter.empty else param.default
        expected = REQUIRED if slot.required else slot.default
        if type(default) is not type(expected) or default != expected:
            yield (
                "signature",
                f"{field}.default",
                f"__init__ has {default!r}, the entry {expected!r}; make the code agree",
            )


def _check_forward(entry: Entry, cls: Any) -> Iterator[Finding]:
    """``forward`` begins with the signature's inputs and ``out``, in order; keyword-only inputs follow."""
    order = signature_for(entry).forward_order
    parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    positional = [
        name for name in order if not (name in entry.signature.inputs and entry.signature.inputs[name].kw_only)
    ]
    actual = [param.name for param in parameters if param.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if actual[: len(positional)] != positional:
        yield (
            "signature",
            "signature.inputs",
            f"forward takes ({', '.join(actual)}), the entry begins with ({', '.join(positional)}); "
            "make the code agree",
        )
    keyword = {param.name for param in parameters if param.kind is inspect.Parameter.KEYWORD_ONLY}
    for name in order:
        if name not in positional and name not in keyword:
            yield (
                "signature",
                f"signature.inputs.{name}.kw_only",
                "forward does not take it by keyword only; make the code agree",
            )
    defaults = {param.name: param.default for param in parameters}
    for name in order:
        decl = entry.signature.inputs.get(name)
        optional = decl is None or decl.optional is not None  # `out` is None where the op allocates
        expected = None if optional else inspect.Parameter.empty
        if name in defaults and defaults[name] is not expected:
            wanted = "defaults to None" if optional else "has no default"
            where = "signature.outputs" if decl is None else f"{decl.where}.optional"
            yield "signature", where, f"in forward {name} {wanted}; make the code agree"


def _check_composition(entry: Entry, cls: Any) -> Iterator[Finding]:
    """The op stages are the class's delegates and the kernel stages its kernel types, each in order."""
    if not entry.composition:
        return
    ops = [stage.op for stage in entry.composition if stage.op is not None]
    delegates = [delegate.__name__ for delegate in getattr(cls, "delegate_types", {}).values()]
    if ops != delegates:
        yield (
            "schema",
            "composition.stages",
            f"the op stages are ({', '.join(ops)}), delegate_types are ({', '.join(delegates)}); make the code agree",
        )
    kernels = [stage.kernel for stage in entry.composition if stage.kernel is not None]
    if kernels != list(getattr(cls, "kernel_types", {})):
        yield (
            "schema",
            "composition.stages",
            f"the kernel stages are ({', '.join(kernels)}), kernel_types are "
            f"({', '.join(getattr(cls, 'kernel_types', {}))}); make the code agree",
        )


def _check_boundary(entry: Entry, cls: Any) -> Iterator[Finding]:
    """A class names compile-boundary operators exactly when its entry calls for a boundary."""
    named = bool(getattr(cls, "compile_op_names", ()))
    if named != entry.has_boundary:
        wanted = "names its torch operators" if entry.has_boundary else "has no torch operator"
        yield "signature", "signature.inputs", f"a class with this signature {wanted} in compile_op_names"


def _check_docstring(entry: Entry, cls: type) -> Iterator[Finding]:
    """A class that may leave tensor contents unread says what wrong ones cause."""
    if "validate_inputs" in entry.signature.params and "validate_inputs" not in (inspect.getdoc(cls) or ""):
        text = "the docstring of the class does not say what wrong contents cause where validate_inputs is off; add it"
        yield "signature", "signature.params.validate_inputs", text


# --- what is generated ---


def generated_check(entry: Entry, branch: Branch) -> str:
    """Source of the check that is generated for the calls of one branch."""
    return emit_call_check(entry.name, plan_branch(branch)).text


# --- the whole manifest ---


def _check_families(entries: list[Entry]) -> Iterator[Diagnostic]:
    """``__all__`` of a family holds exactly its entries whose class exists (spec-only ones may lack it)."""
    for family in sorted({entry.family for entry in entries}):
        module = _family_module(family)
        if isinstance(module, str):
            continue  # reported for its implemented entries
        exported = set(getattr(module, "__all__", ()))
        ops = {name for name in exported if name.endswith("Op")}
        declared = {entry.name for entry in entries if entry.family == family}
        for name in sorted(ops - declared):
            yield Diagnostic(
                "schema",
                f"{family}.yaml",
                name,
                "family",
                f"tileops.{family} exports it without an entry; add one",
            )
        for entry in entries:
            if entry.family == family and entry.name not in exported and hasattr(module, entry.name):
                yield Diagnostic(
                    "schema", entry.file, entry.name, "family", f"tileops.{family}.__all__ lacks it; add it"
                )


def _check_benchmarks() -> Iterator[Diagnostic]:
    """Every benchmark file of a checkout goes through `tileops.bench`."""
    directory = Path(__file__).resolve().parents[2] / "benchmarks" / "ops"
    for path in sorted(directory.glob("bench_*.py")) if directory.is_dir() else ():
        text = path.read_text()
        missing = [name for name in BENCH_API if name not in text]
        if missing:
            message = f"the file does not use bench.{' and bench.'.join(missing)}; it times on its own"
            yield Diagnostic("bench", f"benchmarks/ops/{path.name}", "", "", message)
