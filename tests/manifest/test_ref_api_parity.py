"""Entries that follow a function of PyTorch take its parameters: same names, order, defaults and keyword-only
marks, apart from the differences listed here, each with its reason.

A documented signature is read from the function itself, or from the first lines of its docstring where it is
built in; where the documentation lists several forms, the entry follows one of them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tileops.manifest import Entry, load_all
from tileops.manifest.signature import REQUIRED

#: Parameters of a reference that no entry has.
NEVER = {
    "out": "a result buffer is an effect of the signature, not a parameter",
    "_stacklevel": "private",
    "return_indices": "the number of results is fixed: with indices it is a second entry",
}

#: Entries whose reference defines only a part of what they compute, so that signatures are not comparable.
PARTS = {
    "AdaLayerNormFwdOp": "torch normalises; scale and shift per row follow",
    "AdaLayerNormZeroFwdOp": "torch normalises; scale, shift and gate per row follow",
    "BatchNormFwdOp": "native_batch_norm is undocumented",
    "FusedAddLayerNormFwdOp": "torch normalises; the addition of the residual comes before",
    "GemmFP8FwdOp": "_scaled_mm is undocumented, and has no scales per block",
    "INT8DequantPerBlockFwdOp": "torch.dequantize takes a quantized tensor, here codes and scales are two",
    "INT8DequantPerChannelFwdOp": "torch.dequantize takes a quantized tensor, here codes and scales are two",
    "INT8DequantPerTensorFwdOp": "torch.dequantize takes a quantized tensor, here codes and scales are two",
    "INT8QuantPerChannelFwdOp": "torch.quantize_per_channel is given its scales, here they are computed",
    "TopKSelectFwdOp": "torch.topk selects; the interval of each query and the padding are additions",
}


@dataclass(frozen=True)
class Difference:
    """What an entry does differently from its reference, and why.

    Attributes:
        why: the reason.
        renamed: names of the entry -> names of the reference.
        absent: parameters of the reference that the entry lacks.
        added: parameters or tensors of the entry that the reference lacks.
        kw_only: parameters whose keyword-only mark differs.
    """

    why: str
    renamed: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    kw_only: tuple[str, ...] = ()


X = Difference("the one tensor that is normalised, reduced or quantized is x in this library", renamed={"x": "input"})
INPLACE = Difference("the language's own example of an effect declares inplace keyword-only", kw_only=("inplace",))

DIFFERENCES: dict[str, Difference] = {
    **dict.fromkeys(
        ("LayerNormFwdOp", "RMSNormFwdOp", "GroupNormFwdOp", "InstanceNormFwdOp", "SoftmaxFwdOp", "LogSoftmaxFwdOp"), X
    ),
    **dict.fromkeys(("LogSumExpFwdOp", "SumFwdOp", "MeanFwdOp", "ProdFwdOp", "AmaxFwdOp", "AminFwdOp"), X),
    **dict.fromkeys(("VarFwdOp", "StdFwdOp", "VarMeanFwdOp", "ArgmaxFwdOp", "ArgminFwdOp", "AllFwdOp", "AnyFwdOp"), X),
    **dict.fromkeys(("CountNonzeroFwdOp", "CumsumFwdOp", "CumprodFwdOp"), X),
    **dict.fromkeys(("ReluFwdOp", "SiluFwdOp", "HardswishFwdOp", "HardsigmoidFwdOp", "MishFwdOp"), INPLACE),
    **dict.fromkeys(("SeluFwdOp", "LeakyReluFwdOp", "EluFwdOp", "HardtanhFwdOp"), INPLACE),
    "DropoutFwdOp": Difference(
        "the mask is a function of the seed, and the op is no activation that works in place",
        added=("seed",),
        absent=("inplace",),
    ),
    "GemmFwdOp": Difference(
        "the names of BLAS, whose transpositions it has",
        renamed={"a": "input", "b": "other"},
        added=("trans_a", "trans_b"),
    ),
    "FFTC2CFwdOp": Difference(
        "always the whole last axis, without scaling", renamed={"x": "input"}, absent=("n", "dim", "norm")
    ),
    "BmmFwdOp": Difference("the names of GemmFwdOp", renamed={"a": "input", "b": "mat2"}),
}


@dataclass(frozen=True)
class Slot:
    """A parameter of a reference."""

    name: str
    default: Any
    kw_only: bool


def resolve(path: str) -> Any:
    """The object that a qualified name of torch names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def documented(path: str) -> list[list[Slot]]:
    """Every form of a call that the reference documents."""
    function = resolve(path)
    text = inspect.getdoc(function) or ""
    if not text:
        method = getattr(resolve("torch.Tensor"), path.rpartition(".")[2])
        text = re.sub(r"\(", "(input, ", inspect.getdoc(method) or "", count=1)
    name = path.rpartition(".")[2]
    forms = [
        parsed
        for call in re.findall(rf"(?m)^(?:\.\. function:: )?(?:[\w.]+\.)?{name}\((.*?)\)(?: ->|\s*$)", text)
        if (parsed := parse_form(call)) is not None
    ]
    try:
        signature = inspect.signature(function)
    except ValueError:
        return forms
    if "args" in signature.parameters:
        return forms
    return [*forms, [slot(parameter) for parameter in signature.parameters.values()]]


def joined(forms: list[list[Slot]]) -> list[list[Slot]]:
    """`forms`, where a parameter that some form does without has the default None: ``sum(input)`` and
    ``sum(input, dim)`` are one entry, whose `dim` may be None.
    """
    common = set.intersection(*({item.name for item in form} for form in forms)) if forms else set()
    return [
        [replace(item, default=None) if item.default is REQUIRED and item.name not in common else item for item in form]
        for form in forms
    ]


def slot(parameter: inspect.Parameter) -> Slot:
    default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
    return Slot(parameter.name, default, parameter.kind is inspect.Parameter.KEYWORD_ONLY)


def parse_form(call: str) -> list[Slot] | None:
    """The parameters of a form such as ``input, dim, *, dtype=None``."""
    try:
        arguments = ast.parse(f"def form({call}): pass").body[0].args  # type: ignore[attr-defined]
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [REQUIRED] * (len(plain) - len(arguments.defaults))
        defaults += [ast.literal_eval(node) for node in arguments.defaults]
        found = [Slot(arg.arg, default, False) for arg, default in zip(plain, defaults, strict=True)]
        for arg, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            found.append(Slot(arg.arg, REQUIRED if node is None else ast.literal_eval(node), True))
    except (SyntaxError, ValueError):
        return None
    return found


def differences(entry: Entry, form: list[Slot]) -> list[str]:
    """What the entry does differently, beyond what `DIFFERENCES` allows."""
    allowed = DIFFERENCES.get(entry.name, Difference(""))
    renamed = allowed.renamed
    reference = {item.name: item for item in form if item.name not in {*allowed.absent, *NEVER}}
    inputs = [renamed.get(name, name) for name in entry.signature.inputs if name not in allowed.added]
    params = {
        renamed.get(name, name): item for name, item in entry.signature.params.items() if name not in allowed.added
    }
    found = [f"lacks {name}" for name in reference if name not in inputs and name not in params]
    found += [f"adds {name}" for name in [*inputs, *params] if name not in reference]
    if found:
        return found
    for ours in (inputs, list(params)):
        theirs = [name for name in reference if name in ours]
        if ours != theirs:
            found.append(f"orders {ours}, the reference {theirs}")
    for name, item in params.items():
        theirs = reference[name]
        if item.default is not theirs.default and item.default != theirs.default:
            found.append(f"{name} = {item.default!r}, in the reference {theirs.default!r}")
        if item.kw_only != theirs.kw_only and name not in allowed.kw_only:
            found.append(f"{name} is {'' if item.kw_only else 'not '}keyword-only")
    return found


#: A gradient follows the gradient of its reference, which has no signature of its own.
FOLLOWING = {
    name: entry
    for name, entry in load_all().items()
    if (entry.ref_api or "").startswith("torch.") and name.endswith("FwdOp") and name not in PARTS
}


@pytest.mark.parametrize("entry", FOLLOWING.values(), ids=list(FOLLOWING))
def test_an_entry_takes_the_parameters_of_its_reference(entry: Entry) -> None:
    forms = documented(entry.ref_api or "")
    assert forms, f"{entry.ref_api} documents no signature"
    found = min((differences(entry, form) for form in joined(forms)), key=len)
    assert not found, f"{entry.ref_api}: {'; '.join(found)}"


def test_every_listed_difference_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(DIFFERENCES) <= set(FOLLOWING)
    assert set(PARTS) <= set(load_all())
    monkeypatch.setattr(f"{__name__}.DIFFERENCES", {})
    for name in DIFFERENCES:
        entry = load_all()[name]
        assert all(differences(entry, form) for form in joined(documented(entry.ref_api or ""))), name


def test_what_differs_is_named() -> None:
    entry = load_all()["SubFwdOp"]
    form = parse_form("input, other, scale, *, alpha=2")
    assert form is not None
    assert differences(entry, form) == ["lacks scale"]
    del form[2]
    assert differences(entry, form) == ["alpha = 1, in the reference 2"]
    assert differences(entry, parse_form("other, input, alpha=1") or []) == [
        "orders ['input', 'other'], the reference ['other', 'input']",
        "alpha is keyword-only",
    ]
