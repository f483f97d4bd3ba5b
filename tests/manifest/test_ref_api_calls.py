"""Entries and the PyTorch functions that they follow agree on small calls: which are legal, and what shape and
dtype the result has. The calls are the same in every run: PyTorch has quirks of its own to be found.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.manifest.test_ref_api_parity import DIFFERENCES, Difference, resolve
from tileops.errors import CheckError
from tileops.manifest import load_all, load_entry
from tileops.ops.signature_codegen import signature_for

Outcome = list[tuple[tuple[int, ...], torch.dtype]] | str

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
AXIS = st.integers(-4, 3)
AXES = st.one_of(st.none(), AXIS, st.lists(AXIS, max_size=3).map(tuple))
FLOATS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def declared(name: str, tensors: dict[str, torch.Tensor], params: dict[str, Any]) -> Outcome:
    """Results by the generated check of the entry."""
    entry = load_entry(name)
    signature = signature_for(entry)
    try:
        checked = signature.check_call(
            signature.construct(**params), tuple(tensors.get(name) for name in entry.signature.inputs)
        )
    except CheckError as error:
        return f"refused: {error}"
    return [(tuple(shape), dtype) for _, shape, dtype in filter(None, checked.outputs)]


def referenced(name: str, tensors: dict[str, torch.Tensor], params: dict[str, Any]) -> Outcome:
    """Results of the reference itself."""
    renamed = DIFFERENCES.get(name, Difference("")).renamed
    defaults = {key: item.default for key, item in load_entry(name).signature.params.items()}
    given_ = {renamed.get(key, key): value for key, value in tensors.items()}
    given_ |= {key: value for key, value in params.items() if value != defaults[key]}
    if given_.get("keepdim"):
        given_.setdefault("dim", params.get("dim"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # implicit axes, degrees of freedom, padded kernels
            result = resolve(load_entry(name).ref_api or "")(**given_)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return f"refused: {error}"
    results = result if isinstance(result, tuple) else (result,)
    return [(tuple(item.shape), item.dtype) for item in results]


def agree(name: str, tensors: dict[str, torch.Tensor], params: dict[str, Any]) -> None:
    ours, theirs = declared(name, tensors, params), referenced(name, tensors, params)
    assert isinstance(ours, str) == isinstance(theirs, str), f"{name}: {ours}, but PyTorch: {theirs}"
    if not isinstance(ours, str):
        assert ours == theirs


REDUCTIONS = [name for name, entry in load_all().items() if entry.family == "reduction"]


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=25, derandomize=True)
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    declarations = load_entry(name).signature.params
    params: dict[str, Any] = {}
    shape = data.draw(SHAPES, "shape")
    if "dim" in declarations:
        lists = "tuple" in declarations["dim"].type
        params["dim"] = data.draw(AXES if lists else st.one_of(st.none(), AXIS), "dim")
        if params["dim"] in (None, ()) and "None" not in declarations["dim"].type:
            params["dim"] = 0
    if "keepdim" in declarations:
        params["keepdim"] = data.draw(st.booleans(), "keepdim")
    if name == "ProdFwdOp" and params["dim"] is None:
        params["keepdim"] = False  # torch.prod keeps axes only with an axis given
    if "dtype" in declarations:
        params["dtype"] = data.draw(st.one_of(st.none(), FLOATS), "dtype")
    if "ord" in declarations:
        params["ord"] = data.draw(st.sampled_from([1, 2, float("inf")]), "ord")
    if "correction" in declarations:
        params["correction"] = data.draw(st.sampled_from([0, 1, 0.5]), "correction")
    agree(name, {"x": torch.zeros(shape, dtype=data.draw(FLOATS, "T"))}, params)


def per_axis(element: st.SearchStrategy[int], axes: int) -> st.SearchStrategy[Any]:
    return st.one_of(element, st.tuples(*[element] * axes))


POOLS = [
    name
    for name, entry in load_all().items()
    if entry.family == "pool" and entry.name.startswith(("Avg", "Max", "Adaptive"))
]


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=25, derandomize=True)
@given(data=st.data())
def test_pools(name: str, data: st.DataObject) -> None:
    declarations = load_entry(name).signature.params
    axes = int(name[name.index("Pool") + 4])
    draw = lambda label, element: data.draw(per_axis(element, axes), label)  # noqa: E731
    params: dict[str, Any] = {}
    if "output_size" in declarations:
        output = st.one_of(st.none(), st.integers(0, 3))
        params["output_size"] = data.draw(st.one_of(st.integers(0, 3), st.tuples(output, output)), "output_size")
    else:
        params["kernel_size"] = draw("kernel_size", st.integers(1, 4))
        params["stride"] = data.draw(st.one_of(st.none(), per_axis(st.integers(1, 3), axes)), "stride")
        params["padding"] = draw("padding", st.integers(0, 2))
        params["ceil_mode"] = data.draw(st.booleans(), "ceil_mode")
    if "dilation" in declarations:
        params["dilation"] = draw("dilation", st.integers(1, 2))
    if "divisor_override" in declarations:
        params["divisor_override"] = data.draw(st.sampled_from([None, 0, 3]), "divisor_override")
    # Quirks of PyTorch: avg_pool3d refuses an input smaller than its kernel, adaptive pools average nothing to NaN.
    least = 4 if name == "AvgPool3dFwdOp" else int("Adaptive" in name)
    sizes = data.draw(st.lists(st.integers(least, 6), min_size=axes, max_size=axes), "sizes")
    batch, channels = data.draw(st.integers(0, 2), "batch"), data.draw(st.integers(1, 2), "channels")
    assume(batch or 0 not in sizes)  # without any element, PyTorch does not look at the sizes
    agree(name, {"input": torch.zeros(batch, channels, *sizes)}, params)


@pytest.mark.parametrize("axes", [1, 2, 3])
@settings(max_examples=60, derandomize=True)
@given(data=st.data())
def test_convolutions(axes: int, data: st.DataObject) -> None:
    draw = lambda label, element: data.draw(per_axis(element, axes), label)  # noqa: E731
    params = {
        "stride": draw("stride", st.integers(1, 3)),
        "padding": data.draw(
            st.one_of(per_axis(st.integers(0, 2), axes), st.sampled_from(["valid", "same"])), "padding"
        ),
        "dilation": draw("dilation", st.integers(1, 2)),
        "groups": data.draw(st.integers(1, 2), "groups"),
    }
    batch, c_out = data.draw(st.integers(0, 2), "batch"), data.draw(st.integers(0, 4), "C_out")
    c_in = data.draw(st.integers(1, 4), "C_in")  # PyTorch forgets C_out where there is no input channel
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=axes, max_size=axes), "sizes")
    assume(batch or 0 not in sizes)
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes), "kernel")
    tensors = {
        "input": torch.zeros(batch, c_in, *sizes),
        "weight": torch.zeros(c_out, c_in // params["groups"], *kernel),
    }
    if data.draw(st.booleans(), "bias"):
        tensors["bias"] = torch.zeros(c_out)
    agree(f"Conv{axes}dFwdOp", tensors, params)


#: What each tensor of an elementwise op may hold besides the dtype of the call.
SPECIAL = {"condition": torch.bool, "mask": torch.bool}
EVERY = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
EVERY += [torch.float16, torch.bfloat16, torch.float32]
ELEMENTWISE = [
    name
    for name, entry in load_all().items()
    if entry.family == "elementwise" and (entry.ref_api or "").startswith("torch.") and name.endswith("FwdOp")
]
SCALARS = st.sampled_from([0, 1, -1, 300, 0.5, -2.5, 1e6, float("inf")])
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "alpha": SCALARS,
    "value": SCALARS,
    "min": st.one_of(st.none(), SCALARS),
    "max": st.one_of(st.none(), SCALARS),
    "rounding_mode": st.sampled_from([None, "trunc", "floor"]),
    "decimals": st.sampled_from([0, 2]),
    "p": st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    "min_val": st.sampled_from([-1.0, 1.0]),
    "max_val": st.sampled_from([0.0, 1.0]),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@settings(max_examples=15, derandomize=True)
@given(data=st.data())
def test_elementwise(name: str, data: st.DataObject) -> None:
    entry = load_entry(name)
    dtypes = [dtype for dtype in EVERY if str(dtype).removeprefix("torch.") in entry.signature.indices["T"].names]
    dtype = data.draw(st.sampled_from(dtypes), "T")
    tensors = {}
    for tensor, declaration in entry.signature.inputs.items():
        if declaration.optional is None or data.draw(st.booleans(), f"passes {tensor}"):
            shape = () if declaration.shape_text == "[]" else data.draw(SHAPES, tensor)
            tensors[tensor] = torch.zeros(shape, dtype=SPECIAL.get(tensor, dtype))
    params = {key: data.draw(DRAWN[key], key) for key in entry.signature.params if key in DRAWN}
    if "weight" in entry.signature.params:
        params["weight"] = 0.5
    if name == "ClampScalarFwdOp" and not dtype.is_floating_point:
        bounds = [value for value in (params["min"], params["max"]) if value is not None]
        assume(all(isinstance(value, int) for value in bounds))  # PyTorch promotes, here it is refused
    agree(name, tensors, params)
