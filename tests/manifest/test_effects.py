"""Effects: out buffers, mutated and write-only inputs, aliases; presence, nullable outputs, layout and device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.manifest.calls import empty
from tests.manifest.helpers import entry, findings, simple
from tileops.errors import CheckError
from tileops.manifest.branch import branch_at, discriminants
from tileops.manifest.entry import Entry
from tileops.manifest.roofline import traffic
from tileops.manifest.workload import cases
from tileops.ops.signature_codegen import signature_for

ACTIVATION = """
forall: {M: Dim, T: "DType[float16 | float32]"}
params:
  inplace: {type: bool, default: false, kw_only: true}
inputs:
  x: {dtype: T, shape: "[M]", mutated: inplace}
  bias: {dtype: T, shape: "[M]", optional: true}
  scale: {dtype: float32, shape: "[M]", optional: true, kw_only: true}
outputs:
  y: {dtype: T, shape: "[M]", alias: x}
  z: {dtype: float32, shape: "[M]", nullable: "present(bias)"}
"""
BUFFERED = """
forall: {M: Dim, T: "DType[float16 | float32]"}
inputs:
  x: {dtype: T, shape: "[M]"}
  weight: {dtype: T, shape: "[M]", optional: true}
  scale: {dtype: float32, shape: "[M]", optional: true, kw_only: true}
outputs:
  first: {dtype: float32, shape: "[1]"}
  y: {dtype: T, shape: "[M]", buffer: out, contiguous: true}
"""
WRITER = """
forall: {M: Dim, N: Dim}
inputs:
  cache: {dtype: float32, shape: "[N]", mutated: true}
  result: {dtype: float32, shape: "[M]", mutated: true, write_only: true}
  x: {dtype: float32, shape: "[M]"}
  lengths: {dtype: int32, shape: "[M]", device: cpu, values: "full((M,), 1)"}
outputs: {}
"""


def toy(signature: str, name: str, rows: str = "[{label: row}]") -> Entry:
    found = entry(simple(signature, rows), name)
    assert not found.problems
    return found


def checked(toy_entry: Entry, *tensors: Any, **params: Any) -> Any:
    signature = signature_for(toy_entry)
    return signature.check_call(signature.construct(**params), tensors)


# --- out ---


# rule: 001 Table 9 no. 1 "forward gains out after every input not kw_only"
def test_out_follows_the_positional_inputs() -> None:
    assert toy(BUFFERED, "BufferedFwdOp").signature.forward_order == ("x", "weight", "out", "scale")


# rule: 001 Table 8 no. 8 "tag present(out)"; Table 9 no. 1 "Same shape and dtype as the output"
def test_out_is_written_where_it_is_passed() -> None:
    op = toy(BUFFERED, "BufferedFwdOp")
    x = empty(3)
    assert checked(op, x, None, None, None).written == ()
    assert checked(op, x, None, empty(3), None).written == ("out",)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (empty(4), r"outputs\.y\.buffer\.shape: out has shape \[4\]"),
        (empty(3, dtype=torch.float16), r"outputs\.y\.buffer\.dtype: out has dtype float16, expected float32"),
        (empty(3, device="cpu"), r"outputs\.y\.buffer: out is on cpu but the call is on meta"),
        (empty(6)[::2], r"outputs\.y\.buffer\.contiguous: out has strides \[2\]"),
        ("out", r"outputs\.y\.buffer: out must be a torch\.Tensor, got str"),
    ],
)
def test_out_has_the_type_of_its_output(out: Any, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        checked(toy(BUFFERED, "BufferedFwdOp"), empty(3), None, out, None)


# rule: 001 "An output buffer fixes only its presence and is checked against the output type once known"
def test_out_solves_no_index() -> None:
    text = BUFFERED.replace('y: {dtype: T, shape: "[M]"', 'y: {dtype: T, shape: "[N]"').replace(
        "M: Dim", "M: Dim, N: Dim"
    )
    assert any("N" in item and "solved from no input" in item for item in findings(simple(text)))


# --- mutated, write_only, alias ---


# rule: 001 Table 9 no. 4 "written only when the expression holds"
def test_a_conditional_effect_follows_its_discriminant() -> None:
    op = toy(ACTIVATION, "ActivationFwdOp")
    assert checked(op, empty(2), None, None).written == ()
    assert checked(op, empty(2), None, None, inplace=True).written == ("x",)


# rule: 001 Table 9 nos. 2, 3 and 5; 003 section 9 "counting rules"
def test_traffic_counts_each_storage_by_its_effect() -> None:
    rows = "[{M: 4, N: 10, label: row}]"
    (call,) = cases(toy(WRITER, "WriterFwdOp", rows))
    # cache is read and written, result only written, x and lengths only read
    assert traffic(call.view(), call.branch) == (4 * 10 + 4 * 4 + 4 * 4, 4 * 10 + 4 * 4)
    activation = (
        "[{M: 4, dtype_cases: [{T: float32}], label: a}, {M: 4, inplace: true, dtype_cases: [{T: float32}], label: b}]"
    )
    fresh, written = cases(toy(ACTIVATION, "ActivationFwdOp", activation))
    assert traffic(fresh.view(), fresh.branch) == (16, 16)
    assert traffic(written.view(), written.branch) == (16, 16)  # y is x


# rule: 001 Table 9 no. 3 "if the op returns None, outputs is empty"
def test_an_op_may_return_nothing() -> None:
    op = toy(WRITER, "WriterFwdOp", "[{M: 4, N: 10, label: row}]")
    assert not findings(simple(WRITER, "[{M: 4, N: 10, label: row}]", '{flops: "M"}'))
    result = checked(op, empty(10), empty(4), empty(4), empty(4, dtype=torch.int32, device="cpu"))
    assert result.outputs == ()
    assert result.written == ("cache", "result")


# rule: 000 section 6 "Effect declarations must also satisfy the following rules"
@pytest.mark.parametrize(
    ("text", "field"),
    [
        (WRITER.replace("mutated: true, write_only", "write_only"), "signature.inputs.result.write_only"),
        (ACTIVATION.replace(", mutated: inplace", ""), "signature.outputs.y.alias"),
        (ACTIVATION.replace("alias: x", "alias: x, buffer: out"), "signature.outputs.y.alias"),
        (ACTIVATION.replace("alias: x", "alias: nobody"), "signature.outputs.y.alias"),
        (BUFFERED.replace('shape: "[1]"', 'shape: "[1]", buffer: out'), "signature.outputs.y.buffer"),
        (ACTIVATION.replace("mutated: inplace", "mutated: M"), "signature.inputs.x.mutated"),
    ],
)
def test_rules_between_effects(text: str, field: str) -> None:
    assert any(item.startswith(f"{field}: ") for item in findings(simple(text)))


# --- presence, layout, device ---


# rule: 001 "An output that may be None is nullable"; Table 8 no. 7
def test_a_nullable_output_follows_its_discriminant() -> None:
    op = toy(ACTIVATION, "ActivationFwdOp")
    assert checked(op, empty(2), None, None).outputs[1] is None
    assert checked(op, empty(2), empty(2), None).outputs[1].dtype == torch.float32


# rule: 001 "inputs that must be present together share one discriminant"
def test_inputs_that_share_a_presence() -> None:
    text = """
    forall: {M: Dim}
    params: {mode: {type: "'a' | 'b'", default: a}}
    inputs:
      x: {dtype: float32, shape: "[M]"}
      up: {dtype: float32, shape: "[M]", optional: true}
      down: {dtype: float32, shape: "[M]", optional: "present(up)"}
      table: {dtype: float32, shape: "[M]", optional: "mode == 'b'"}
    outputs: {y: {dtype: float32, shape: "[M]"}}
    """
    op, x = toy(text, "SharedFwdOp"), empty(2)
    checked(op, x, x, x, None)
    checked(op, x, None, None, x, mode="b")
    with pytest.raises(CheckError, match=r"inputs\.down: down is None, but it is required where present\(up\)"):
        checked(op, x, x, None, None)
    with pytest.raises(CheckError, match=r"inputs\.down\.optional: down was passed, but it belongs to calls where"):
        checked(op, x, None, x, None)
    with pytest.raises(CheckError, match=r"inputs\.table: table is None, but it is required where mode == 'b'"):
        checked(op, x, None, None, None, mode="b")
    with pytest.raises(CheckError, match=r"inputs\.x: x is None, but it is required"):
        checked(op, None, None, None, None)


# rule: 001 "optional and nullable expressions are built from finite boolean atoms"
def test_presence_is_decided_by_finite_discriminants() -> None:
    text = ACTIVATION.replace("optional: true}\n  scale", 'optional: "M > 2"}\n  scale')
    assert any(item.startswith("signature.inputs.bias.optional: M is no finite") for item in findings(simple(text)))


# rule: 001 "A tensor that must be contiguous declares contiguous: true; others accept any stride"
def test_contiguity_is_asked_of_whom_declares_it() -> None:
    x, y = '{dtype: float32, shape: "[M]", contiguous: true}', '{dtype: float32, shape: "[M]"}'
    text = f"forall: {{M: Dim}}\ninputs: {{x: {x}, y: {y}}}\n"
    op = toy(f'{text}outputs: {{z: {{dtype: float32, shape: "[M]"}}}}', "ContiguousFwdOp")
    checked(op, empty(3), empty(6)[::2])
    with pytest.raises(CheckError, match=r"inputs\.x\.contiguous: x has strides \[2\]; pass x\.contiguous\(\)"):
        checked(op, empty(6)[::2], empty(3))


# rule: 001 "A tensor that must live on the CPU declares device: cpu"; "take no part in choosing the call device"
def test_a_cpu_tensor_decides_no_device() -> None:
    op = toy(WRITER, "WriterFwdOp")
    lengths = empty(4, dtype=torch.int32, device="cpu")
    assert checked(op, empty(9), empty(4), empty(4), lengths).device == torch.device("meta")
    with pytest.raises(CheckError, match=r"inputs\.lengths\.device: lengths is on meta, expected cpu"):
        checked(op, empty(9), empty(4), empty(4), empty(4, dtype=torch.int32))
    with pytest.raises(CheckError, match=r"inputs\.x: x is on cpu but cache is on meta"):
        checked(op, empty(9), empty(4), empty(4, device="cpu"), lengths)
    (call,) = cases(toy(WRITER, "WriterFwdOp", "[{M: 4, N: 10, label: row}]"))
    assert [name for name, item in call.inputs.items() if item.cpu] == ["lengths"]


# rule: 001 "A device parameter is declared only by an op without call-time tensor inputs"
def test_an_op_without_inputs_declares_its_device() -> None:
    text = """
    params: {heads: {type: int}, device: {type: "torch.device | str | None", default: null}}
    outputs: {slopes: {dtype: float32, shape: "[heads]"}}
    """
    rows = "[{heads: 4, label: row}]"
    assert findings(simple(text, rows, '{flops: "heads"}')) == []
    op = toy(text, "SlopesFwdOp", rows)
    assert not op.has_boundary
    assert checked(op, heads=4, device="cpu").outputs[0].shape == (4,)
    with pytest.raises(
        CheckError, match=r"outputs\.slopes\.shape: heads is -1, but the size of an axis is not negative"
    ):
        signature_for(op).construct(heads=-1)
    assert any(
        item.startswith("signature.params.device")
        for item in findings(
            simple(text.replace("outputs:", 'inputs: {x: {dtype: float32, shape: "[heads]"}}\n    outputs:'), rows)
        )
    )


# rule: 001 "A construction-time tensor is a params entry with dtype and shape, optionally optional: true"
def test_tensors_of_the_construction() -> None:
    text = """
    forall: {D: Dim, M: Dim, R: "DType[float32 | float16]"}
    params:
      factors: {dtype: R, shape: "[D // 2]", optional: true}
      table: {dtype: float32, shape: "[D, 2]"}
    inputs: {x: {dtype: float32, shape: "[M, D]"}}
    outputs: {y: {dtype: float32, shape: "[M, D]"}}
    shape_rules: ["D % 4 == 0"]
    """
    op = toy(text, "HeldFwdOp")
    signature = signature_for(op)
    held = torch.zeros(8, 2)
    assert [slot.is_tensor for slot in signature.params] == [True, True]
    construction = signature.construct(factors=torch.zeros(4), table=held)
    assert signature.check_call(construction, (empty(3, 8),)).indices["D"] == 8
    with pytest.raises(CheckError, match=r"inputs\.x\.shape: x has shape \[3, 6\]"):
        signature.check_call(construction, (empty(3, 6),))
    with pytest.raises(CheckError, match=r"params\.table.* pass table=|params\.table: table is None"):
        signature.construct(factors=torch.zeros(4))
    # checked when the op is constructed: the shapes against each other, and the rule over what they solve
    with pytest.raises(
        CheckError, match=r"params\.factors\.dtype: factors has dtype uint16, expected float32 or float16"
    ):
        signature.construct(factors=torch.zeros(4, dtype=torch.uint16), table=held)
    signature.construct(table=held.double())  # cast to the declared dtype where the op holds it
    with pytest.raises(CheckError, match=r"params\.factors\.shape: factors has shape \[3\]"):
        signature.construct(factors=torch.zeros(3), table=held)
    with pytest.raises(CheckError, match=r"shape_rules\[0\]: 'D % 4 == 0' does not hold for D=6"):
        signature.construct(table=torch.zeros(6, 2))


# rule: 001 "Packed dtypes ... are written by carrier"; "roofline counts carrier bytes"
def test_packed_dtypes_count_their_carrier() -> None:
    text = """
    forall: {N: Dim, K: Dim, M: Dim}
    inputs:
      x: {dtype: float16, shape: "[M, K]"}
      packed_weight: {dtype: uint8, shape: "[N, K // 2]"}
    outputs: {y: {dtype: float16, shape: "[M, N]"}}
    shape_rules: ["K % 2 == 0"]
    """
    (call,) = cases(toy(text, "PackedFwdOp", "[{M: 2, N: 3, K: 8, label: row}]"))
    assert call.inputs["packed_weight"].shape == (3, 4)
    assert traffic(call.view(), call.branch) == (2 * 8 * 2 + 3 * 4, 2 * 3 * 2)


# rule: 001 "Call-time tensor presence per call"; every combination is a branch of its own
def test_branches_name_what_a_call_writes() -> None:
    signature = toy(ACTIVATION, "ActivationFwdOp").signature
    choices = discriminants(signature)
    assert [choice.key for choice in choices] == ["inplace", "present(bias)", "present(scale)"]
    branch = branch_at(signature, choices, {"inplace": True, "bias": True, "scale": False})
    assert branch.written == ("x",)
    assert list(branch.outputs) == ["y", "z"]
    assert list(branch.inputs) == ["x", "bias"]
