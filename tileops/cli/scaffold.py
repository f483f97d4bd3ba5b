"""What `tileops new` writes: the signature of a reference API as an entry, and the code around it.

A pointwise operator is three small additions (entry, scalar function, reference), because its class, kernels and
tests follow from the entry. Any other operator also gets a call spec, a kernel of two modules (host and device), a
class and a test of its own.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileops import manifest
from tileops.cli import scaffold_templates as templates
from tileops.errors import ManifestError
from tileops.ops.elementwise.family import function_name

#: Parameters of torch's functions that no operator has.
_NOT_OURS = {"out", "dtype", "layout", "device", "requires_grad", "memory_format", "generator", "name"}
#: Names that torch gives to tensors, where a signature has no annotations.
_TENSORS = {
    *(
        "input",
        "other",
        "end",
        "mask",
        "condition",
        "exponent",
        "tensor",
        "tensor1",
        "tensor2",
        "mat1",
        "mat2",
        "x",
        "y",
    ),
    *("query", "key", "value", "index", "source", "target", "bias", "running_mean", "running_var"),
}
#: Where a pointwise operator of so many tensors belongs: spec file, module of the scalar function.
_PLACES = {
    1: ("elementwise_unary", "mathematics"),
    2: ("elementwise_binary", "arithmetic"),
    3: ("elementwise", "selection"),
}


@dataclass(frozen=True)
class Edit:
    """A file to write.

    Attributes:
        path: where.
        text: its whole content.
        added: the part that is new.
        is_new: the file does not exist yet.
    """

    path: Path
    text: str
    added: str
    is_new: bool


@dataclass(frozen=True)
class Plan:
    """Edits, and what is left to do by hand."""

    edits: list[Edit]
    steps: list[str]


@dataclass(frozen=True)
class Param:
    """A parameter of a reference API that is no tensor.

    Attributes:
        name: its name.
        type: as the manifest writes types.
        default: its default, if it has one.
        required: it has none.
    """

    name: str
    type: str
    default: Any
    required: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Param:
        """From its default or, where that is None or missing, its annotation; a number where that says nothing."""
        default = parameter.default
        kinds = {bool: "bool", int: "int", float: "float", str: "str"}
        kind = kinds.get(type(default))
        if kind is None:
            words = re.findall(r"\w+", str(parameter.annotation))
            kind = next((word for word in words if word in kinds.values()), "float")
        return cls(
            parameter.name, f"{kind} | None" if default is None else kind, default, default is inspect.Parameter.empty
        )


@dataclass(frozen=True)
class Reference:
    """The signature of a reference API: names of its tensors, and its other parameters."""

    tensors: list[str]
    params: list[Param]


def plan(op: str, ref_api: str, family: str, root: Path) -> Plan:
    """What to write for a new operator.

    Args:
        op: its name, with or without ``FwdOp``.
        ref_api: qualified name of a Python callable.
        family: its family; a new one is begun.
        root: of the checkout.

    Raises:
        ValueError: the name is taken or no class name, or the reference cannot be read; with a remedy.
    """
    name = op if op.endswith("Op") else f"{op}FwdOp"
    if not re.fullmatch(r"[A-Z]\w*(Fwd|Bwd)Op", name):
        raise ValueError(f"{op!r} is no name of an operator; write it like Softsign or SoftsignFwdOp")
    try:
        taken = manifest.load_entry(name)
    except ManifestError:
        pass
    else:
        raise ValueError(f"{name} exists already, in tileops/manifest/spec/{taken.file}; choose another name")
    if not re.fullmatch(r"[a-z]\w*", family):
        raise ValueError(f"{family!r} is no name of a family; write it like elementwise")
    reference = read_reference(ref_api)
    if family == "elementwise" and len(reference.tensors) in _PLACES:
        return _pointwise(name, ref_api, reference, root)
    return _written_out(name, ref_api, reference, family, root)


def read_reference(path: str) -> Reference:
    """Tensors and parameters of a callable, from its signature or, for torch's built-in functions, from torch's own
    list of them.

    Raises:
        ValueError: there is no such callable, its signature is unknown, or no parameter of it is a tensor.
    """
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"{path!r} cannot be imported; give the qualified name of a function") from None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        import torch.overrides

        stand_in = torch.overrides.get_testing_overrides().get(function)
        if stand_in is None:
            raise ValueError(f"{path} has no signature that could be read; write the entry by hand") from None
        signature = inspect.signature(stand_in)
    tensors: list[str] = []
    params: list[Param] = []
    for parameter in signature.parameters.values():
        if (
            parameter.name in _NOT_OURS
            or parameter.name[0] == "_"
            or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ):
            continue
        is_number = isinstance(parameter.default, bool | int | float | str)
        if "Tensor" in str(parameter.annotation) or (parameter.name in _TENSORS and not is_number):
            tensors.append(parameter.name)
        else:
            params.append(Param.of(parameter))
    if not tensors:
        raise ValueError(f"no parameter of {path} is known to be a tensor; write the entry by hand")
    return Reference(tensors, params)


def _pointwise(name: str, ref_api: str, reference: Reference, root: Path) -> Plan:
    spec, module = _PLACES[len(reference.tensors)]
    package, stem = root / "tileops", function_name(name)
    is_choice = {param.name: param.type.split(" ")[0] in ("bool", "str") for param in reference.params}
    numbers = [name for name, choice in is_choice.items() if not choice]
    choices = [name for name, choice in is_choice.items() if choice and name != "inplace"]
    arguments = [f"{item}: Any" for item in (*reference.tensors, *numbers)]
    arguments += ["*", *(f"{item}: Any" for item in choices)] if choices else []
    function = templates.FUNCTION.format(function=stem, arguments=", ".join(arguments))
    workloads = package / "workloads" / "elementwise.py"
    line = f'            "{name.removesuffix("FwdOp")}": {ref_api.replace("torch.nn.functional.", "F.")},\n'
    edits = [
        _append(package / "manifest" / "spec" / f"{spec}.yaml", templates.pointwise_entry(name, ref_api, reference)),
        _append(package / "kernels" / "elementwise" / "functions" / f"{module}.py", function),
        _insert(workloads, "        }\n    ),\n)", line),
    ]
    return Plan(
        edits,
        [
            f"Complete the entry in tileops/manifest/spec/{spec}.yaml (dtypes, rules, cost) "
            f"from the documentation of {ref_api}.",
            f"Write {stem} in tileops/kernels/elementwise/functions/{module}.py over the words of tileops.jit.lang.",
            "Set its status to implemented, and run: python scripts/gen_stubs.py",
            "Check it: tileops validate; pytest tests/ops_runtime/test_every_op.py tests/contract "
            f"tests/ptx/test_pointwise_kernels.py -k {name.removesuffix('FwdOp')}",
        ],
    )


def _written_out(name: str, ref_api: str, reference: Reference, family: str, root: Path) -> Plan:
    package, stem, title = root / "tileops", function_name(name), name.removesuffix("Op")
    values = {
        "name": name,
        "title": title,
        "short": title.removesuffix("Fwd").removesuffix("Bwd"),
        "stem": stem,
        "family": family,
        "ref_api": ref_api,
        **templates.pieces(reference),
    }
    kernels, ops = package / "kernels" / family, package / "ops" / family
    new = {
        kernels / f"{stem}_call.py": templates.CALL,
        kernels / f"{stem}_cpu.py": templates.HOST,
        kernels / f"_{stem}_cpu.py": templates.DEVICE,
        ops / f"{stem}.py": templates.OP,
        root / "tests" / "ops" / f"test_{stem}.py": templates.TEST,
    }
    spec = package / "manifest" / "spec" / f"{family}.yaml"
    edits = [_append(spec, templates.entry(name, ref_api, reference, family))]
    edits += [Edit(path, text := template.format(**values), text, True) for path, template in new.items()]
    taken = [
        str(edit.path.relative_to(root)) for edit in edits if edit.is_new and edit.path.exists() and edit.path != spec
    ]
    if taken:
        raise ValueError(f"{', '.join(taken)} exist already; move them away or choose another name")
    for folder, doc in ((kernels, "Kernels"), (ops, "Operators")):
        if not (folder / "__init__.py").exists():
            text = f'"""{doc} of the family {family}."""\n'
            edits.append(Edit(folder / "__init__.py", text, text, True))
    public = package / f"{family}.py"
    workloads = package / "workloads" / f"{family}.py"
    return Plan(
        edits,
        [
            f"Complete the entry in {family}.yaml from the documentation of {ref_api}; run: tileops validate",
            f"Write the kernel: what is compiled in _{stem}_cpu.py, how it is launched in {stem}_cpu.py.",
            f"Register the reference: Workload({name!r}, ...) in {workloads.relative_to(root)}.",
            f"Export the class in tileops/ops/{family}/__init__.py and {public.relative_to(root)}.",
            "Set the status to implemented, and run: python scripts/gen_stubs.py",
            f"Check it: pytest tests/ops/test_{stem}.py tests/contract -k {name}",
        ],
    )


def _append(path: Path, text: str) -> Edit:
    if not path.exists():
        return Edit(path, text.lstrip("\n"), text, True)
    return Edit(path, path.read_text().rstrip("\n") + "\n" + text, text, False)


def _insert(path: Path, before: str, text: str) -> Edit:
    """`text` before the last occurrence of a line."""
    content = path.read_text()
    head, found, tail = content.rpartition(before)
    if not found:
        raise ValueError(f"{path} has no list of references that ends in {before!r}; add the line by hand")
    return Edit(path, head + text + found + tail, text, False)
