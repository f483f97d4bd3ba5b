"""Entries against classes: constructor, forward, compile boundary, and the names of reference APIs."""

from __future__ import annotations

from typing import Any

import pytest

from tileops.manifest import code_checks, load_entry


class _Implementation:
    """What the code checks read of a class."""

    compile_op_names = ("tileops::toy",)

    def __init__(self, trans_a: bool = False, trans_b: bool = True, *, target: str | None = None) -> None: ...

    def forward(self, a: object, b: object) -> None: ...


def gemm_class(**changes: Any) -> Any:
    return type("GemmFwdOp", (_Implementation,), changes)


def code_findings(cls: Any) -> list[str]:
    gemm = load_entry("GemmFwdOp")
    checks = (code_checks._check_init, code_checks._check_forward, code_checks._check_boundary)
    return [f"{field}: {message}" for check in checks for _, field, message in check(gemm, cls)]


def test_code_that_conforms() -> None:
    assert code_findings(gemm_class()) == []


def _init_order(self: Any, trans_b: bool = True, trans_a: bool = False, *, target: str | None = None) -> None: ...
def _init_more(
    self: Any, trans_a: bool = False, trans_b: bool = True, tile: int = 8, *, target: Any = None
) -> None: ...
def _init_default(self: Any, trans_a: bool = False, trans_b: bool = False, *, target: Any = None) -> None: ...
def _init_kw(self: Any, trans_a: bool = False, *, trans_b: bool = True, target: Any = None) -> None: ...
def _init_int(self: Any, trans_a: bool = 0, trans_b: bool = True, *, target: Any = None) -> None: ...  # type: ignore[assignment]
def _forward(self: Any, b: object, a: object) -> None: ...


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"__init__": _init_order},
            "signature.params: __init__ takes (trans_b, trans_a), the entry declares",
        ),
        ({"__init__": _init_more}, "signature.params: __init__ takes (trans_a, trans_b, tile)"),
        ({"__init__": _init_default}, "signature.params.trans_b.default: __init__ has False, the entry True"),
        ({"__init__": _init_int}, "signature.params.trans_a.default: __init__ has 0, the entry False"),
        (
            {"__init__": _init_kw},
            "signature.params.trans_b.kw_only: in __init__ it must be positional or keyword",
        ),
        ({"forward": _forward}, "signature.inputs: forward takes (b, a), the entry begins with (a, b)"),
        ({"compile_op_names": ()}, "a class with this signature names its torch operators"),
    ],
)
def test_code_that_does_not(changes: dict[str, Any], expected: str) -> None:
    assert any(expected in item for item in code_findings(gemm_class(**changes)))


def test_injected_parameters_may_be_added() -> None:
    assert code_findings(gemm_class(__init__=_init_more, injected_parameters=("tile",))) == []


def test_reference_names_are_looked_up() -> None:
    assert code_checks._resolves("torch.nn.functional.rms_norm")
    assert not code_checks._resolves("torch.nn.functional.rms_norms")
    assert not code_checks._resolves("torch.matmul.nothing")
