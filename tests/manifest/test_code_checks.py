"""Entries against classes: constructor, forward, compile boundary, composition, public modules, reference APIs and
benchmarks; and that these checks skip spec-only entries, and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.manifest.helpers import GROUPED, base, entry
from tileops.manifest import code_checks, load_entry
from tileops.manifest.entry import Entry


class _Implementation:
    """What the code checks read of a class."""

    compile_op_names = ("tileops::toy",)

    def __init__(self, trans_a: bool = False, trans_b: bool = True, *, target: str | None = None) -> None: ...

    def forward(self, a: object, b: object) -> None: ...


def gemm_class(**changes: Any) -> Any:
    return type("GemmFwdOp", (_Implementation,), changes)


def code_findings(cls: Any, op: Entry | None = None) -> list[str]:
    op = load_entry("GemmFwdOp") if op is None else op
    checks = (
        code_checks._check_init,
        code_checks._check_forward,
        code_checks._check_composition,
        code_checks._check_boundary,
    )
    return [f"{field}: {message}" for check in checks for _, field, message in check(op, cls)]


def test_code_that_conforms() -> None:
    assert code_findings(gemm_class()) == []


def _init_order(self: Any, trans_b: bool = True, trans_a: bool = False, *, target: str | None = None) -> None: ...
def _init_more(
    self: Any, trans_a: bool = False, trans_b: bool = True, tile: int = 8, *, target: Any = None
) -> None: ...
def _init_fewer(self: Any, trans_a: bool = False, *, target: Any = None) -> None: ...
def _init_default(self: Any, trans_a: bool = False, trans_b: bool = False, *, target: Any = None) -> None: ...
def _init_required(self: Any, trans_a: bool, trans_b: bool = True, *, target: Any = None) -> None: ...
def _init_kw(self: Any, trans_a: bool = False, *, trans_b: bool = True, target: Any = None) -> None: ...
def _init_positional(self: Any, trans_a: bool = False, /, trans_b: bool = True, *, target: Any = None) -> None: ...
def _init_int(self: Any, trans_a: bool = 0, trans_b: bool = True, *, target: Any = None) -> None: ...  # type: ignore[assignment]
def _init_args(self: Any, *args: Any, target: Any = None) -> None: ...
def _init_no_target(self: Any, trans_a: bool = False, trans_b: bool = True) -> None: ...
def _init_target_first(self: Any, trans_a: bool = False, trans_b: bool = True, target: Any = None) -> None: ...
def _forward_order(self: Any, b: object, a: object) -> None: ...
def _forward_more(self: Any, a: object, b: object, workspace: object = None) -> None: ...
def _forward_default(self: Any, a: object, b: object = None) -> None: ...


AGREE = "; make the code agree"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"__init__": _init_order},
            "signature.params: __init__ takes (trans_b, trans_a), the entry declares (trans_a, trans_b)" + AGREE,
        ),
        (
            {"__init__": _init_more},
            "signature.params: __init__ takes (trans_a, trans_b, tile), the entry declares (trans_a, trans_b)" + AGREE,
        ),
        (
            {"__init__": _init_fewer},
            "signature.params: __init__ takes (trans_a), the entry declares (trans_a, trans_b)" + AGREE,
        ),
        (
            {"__init__": _init_args},
            "signature.params: __init__ takes (args), the entry declares (trans_a, trans_b)" + AGREE,
        ),
        (
            {"__init__": _init_default},
            "signature.params.trans_b.default: __init__ has False, the entry True" + AGREE,
        ),
        (
            {"__init__": _init_required},
            "signature.params.trans_a.default: __init__ has <required>, the entry False" + AGREE,
        ),
        ({"__init__": _init_int}, "signature.params.trans_a.default: __init__ has 0, the entry False" + AGREE),
        (
            {"__init__": _init_kw},
            "signature.params.trans_b.kw_only: in __init__ it must be positional or keyword" + AGREE,
        ),
        (
            {"__init__": _init_positional},
            "signature.params.trans_a.kw_only: in __init__ it must be positional or keyword" + AGREE,
        ),
        (
            {"__init__": _init_no_target},
            "signature.params: __init__ takes the keyword-only target=None of every op; add it",
        ),
        (
            {"__init__": _init_target_first},
            "signature.params: __init__ takes the keyword-only target=None of every op; add it",
        ),
        ({"forward": _forward_order}, "signature.inputs: forward takes (b, a), the entry begins with (a, b)" + AGREE),
        ({"forward": _forward_default}, "signature.inputs.b.optional: in forward b has no default" + AGREE),
        (
            {"compile_op_names": ()},
            "signature.inputs: a class with this signature names its torch operators in compile_op_names",
        ),
    ],
)
def test_code_that_does_not_conform(changes: dict[str, Any], expected: str) -> None:
    assert code_findings(gemm_class(**changes)) == [expected]


def test_injected_parameters_may_be_added() -> None:
    assert code_findings(gemm_class(__init__=_init_more, injected_parameters=("tile",))) == []


def test_forward_may_append_parameters() -> None:
    assert code_findings(gemm_class(forward=_forward_more)) == []


# --- keyword-only inputs, out, compositions ---

OPTIONAL = """
family: toy
status: implemented
signature:
  inputs:
    x: {dtype: float32, shape: "[]"}
    bias: {dtype: float32, shape: "[]", optional: true}
    scale: {dtype: float32, shape: "[]", optional: true, kw_only: true}
  outputs:
    output: {dtype: float32, shape: "[]", buffer: out}
workloads:
- {some: [bias, scale], label: all}
- {label: none}
roofline: {flops: "1"}
"""


def _optional(self: Any, x: Any, bias: Any = None, out: Any = None, *, scale: Any = None) -> None: ...
def _optional_late(self: Any, x: Any, bias: Any = None, *, scale: Any = None, out: Any = None) -> None: ...
def _optional_positional(self: Any, x: Any, bias: Any = None, out: Any = None, scale: Any = None) -> None: ...
def _optional_required(self: Any, x: Any, bias: Any, out: Any, *, scale: Any) -> None: ...
def _no_parameters(self: Any, *, target: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (_optional, []),
        (
            _optional_late,
            ["signature.inputs: forward takes (x, bias), the entry begins with (x, bias, out)" + AGREE],
        ),
        (
            _optional_positional,
            ["signature.inputs.scale.kw_only: forward does not take it by keyword only" + AGREE],
        ),
        (
            _optional_required,
            [
                "signature.inputs.bias.optional: in forward bias defaults to None" + AGREE,
                "signature.outputs: in forward out defaults to None" + AGREE,
                "signature.inputs.scale.optional: in forward scale defaults to None" + AGREE,
            ],
        ),
    ],
)
def test_optional_inputs_and_out_in_forward(forward: Any, expected: list[str]) -> None:
    cls = gemm_class(__init__=_no_parameters, forward=forward)
    assert code_findings(cls, entry(OPTIONAL, "OptionalFwdOp")) == expected


def _delegates(**stages: str) -> dict[str, Any]:
    return {name: type(op, (), {}) for name, op in stages.items()}


@pytest.mark.parametrize(
    ("delegates", "kernels", "expected"),
    [
        ({"gate": "GateFwdOp", "combine": "CombineFwdOp"}, {"grouped": object}, []),
        (
            {"combine": "CombineFwdOp", "gate": "GateFwdOp"},
            {"grouped": object},
            [
                "composition.stages: the op stages are (GateFwdOp, CombineFwdOp), "
                "delegate_types are (CombineFwdOp, GateFwdOp)" + AGREE
            ],
        ),
        (
            {"gate": "GateFwdOp", "combine": "CombineFwdOp"},
            {},
            ["composition.stages: the kernel stages are (grouped), kernel_types are ()" + AGREE],
        ),
    ],
)
def test_stages_are_the_class_own(delegates: dict[str, str], kernels: dict[str, Any], expected: list[str]) -> None:
    cls = SimpleNamespace(delegate_types=_delegates(**delegates), kernel_types=kernels)
    found = code_checks._check_composition(entry(base(GROUPED)), cls)
    assert [f"{field}: {message}" for _, field, message in found] == expected


def test_a_composite_has_no_boundary_of_its_own() -> None:
    composite = entry(base(GROUPED))
    assert not list(code_checks._check_boundary(composite, SimpleNamespace(compile_op_names=())))
    (finding,) = code_checks._check_boundary(composite, SimpleNamespace(compile_op_names=("tileops::toy",)))
    assert finding[2] == "a class with this signature has no torch operator in compile_op_names"


def test_a_class_says_what_unchecked_contents_cause() -> None:
    fields = base()
    fields["signature"]["params"]["validate_inputs"] = {"type": "bool", "default": False}
    op = entry(fields)
    documented = type("ToyFwdOp", (), {"__doc__": "With validate_inputs off, wrong ids read other rows."})
    assert list(code_checks._check_docstring(op, documented)) == []
    (finding,) = code_checks._check_docstring(op, type("ToyFwdOp", (), {"__doc__": "A toy."}))
    assert finding[1] == "signature.params.validate_inputs"
    assert "does not say what wrong contents cause" in finding[2]


# --- modules ---


@pytest.fixture
def toy_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A public module `tileops.toy` with one conforming class."""
    module = ModuleType("tileops.toy")
    cls = type("OptionalFwdOp", (_Implementation,), {"__init__": _no_parameters, "forward": _optional})
    module.OptionalFwdOp = cls  # type: ignore[attr-defined]
    module.__all__ = ["OptionalFwdOp"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tileops.toy", module)
    return module


def whole(*entries: Entry) -> list[str]:
    found = code_checks.check_code(entries, whole=True)
    return [f"{item.entry}: {item.field}: {item.message}" for item in found]


def test_a_family_exports_its_entries(toy_module: Any) -> None:
    optional = entry(OPTIONAL, "OptionalFwdOp")
    assert whole(optional) == []
    toy_module.__all__ = ["OptionalFwdOp", "StrayFwdOp", "helper"]
    assert whole(optional) == ["StrayFwdOp: family: tileops.toy exports it without an entry; add one"]
    toy_module.__all__ = []
    assert whole(optional) == ["OptionalFwdOp: family: tileops.toy.__all__ lacks it; add it"]


def test_key_and_class_have_one_name(toy_module: Any) -> None:
    toy_module.OptionalFwdOp.__name__ = "Optional"
    assert whole(entry(OPTIONAL, "OptionalFwdOp")) == [
        "OptionalFwdOp: key: the class is named Optional; key and class name are equal"
    ]


def test_only_spec_only_entries_may_lack_a_class(toy_module: Any) -> None:
    fields = yaml.safe_load(OPTIONAL)
    missing = "tileops.toy has no MissingFwdOp; export it or write spec-only"
    assert whole(entry(fields, "OptionalFwdOp"), entry(fields, "MissingFwdOp")) == [f"MissingFwdOp: status: {missing}"]
    fields["status"] = "spec-only"
    assert whole(entry(OPTIONAL, "OptionalFwdOp"), entry(fields, "MissingFwdOp")) == []
    fields["family"] = "no_such_family"
    assert whole(entry(fields, "MissingFwdOp")) == []
    fields["status"] = "implemented"
    (found,) = whole(entry(fields, "MissingFwdOp"))
    assert found.startswith("MissingFwdOp: family: the public module tileops.no_such_family cannot be imported (")


def test_a_spec_only_class_may_deviate(toy_module: Any) -> None:
    fields = yaml.safe_load(OPTIONAL)
    toy_module.OptionalFwdOp.forward = _optional_required
    assert len(whole(entry(fields, "OptionalFwdOp"))) == 3
    fields["status"] = "spec-only"
    assert whole(entry(fields, "OptionalFwdOp")) == []


def test_reference_names_are_looked_up() -> None:
    assert code_checks._resolves("torch.nn.functional.rms_norm")
    assert not code_checks._resolves("torch.nn.functional.rms_norms")
    assert not code_checks._resolves("torch.matmul.nothing")


@pytest.mark.parametrize("status", ["implemented", "spec-only"])
def test_reference_apis_of_all_entries_resolve(status: str) -> None:
    fields = base()
    fields |= {"status": status, "ref_api": "torch.nn.functional.rms_norms"}
    (found,) = code_checks._check_ref_api(entry(fields), False)
    assert found[2] == "torch.nn.functional.rms_norms does not exist in the installed torch; correct the name"
    fields["ref_api"] = "no_such_package.f"
    assert not list(code_checks._check_ref_api(entry(fields), False))
    (found,) = code_checks._check_ref_api(entry(fields), True)
    assert found[2] == "the package 'no_such_package' of no_such_package.f is not installed; install it"


def test_benchmarks_go_through_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "tileops" / "manifest" / "code_checks.py"
    (tmp_path / "benchmarks" / "ops").mkdir(parents=True)
    (tmp_path / "benchmarks" / "ops" / "bench_toy.py").write_text("from tileops.bench import cases")
    monkeypatch.setattr(code_checks, "__file__", str(root))
    (found,) = code_checks._check_benchmarks()
    assert str(found) == (
        "[bench] the file does not use bench.Runner; it times on its own (benchmarks/ops/bench_toy.py)"
    )
