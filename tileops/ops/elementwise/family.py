"""Pointwise operators as data: their classes, from their manifest entries.

An entry says what a class needs: which tensors are operands, which parameters are numbers (passed to the kernel at
run time) and which choose what is compiled. The kernel is the scalar function of the operator's name, ``leaky_relu``
for ``LeakyReluFwdOp``, in `tileops.kernels.elementwise.functions`.
"""

from __future__ import annotations

import re
import textwrap
from functools import lru_cache
from typing import Any, ClassVar, Literal

from tileops import manifest
from tileops.kernels.elementwise.call_spec import (
    BinaryCall,
    BinaryFwdInterface,
    PointwiseCall,
    TernaryCall,
    TernaryFwdInterface,
    UnaryCall,
    UnaryFwdInterface,
)
from tileops.kernels.elementwise.pointwise_cpu import BinaryCpuKernel, TernaryCpuKernel, UnaryCpuKernel
from tileops.kernels.elementwise.pointwise_cuda import BinaryCudaKernel, TernaryCudaKernel, UnaryCudaKernel
from tileops.manifest.entry import Entry
from tileops.manifest.signature import ParamDecl
from tileops.ops.base import Op
from tileops.ops.elementwise import gradient
from tileops.ops.facts import CallFacts

#: By the number of operands: kernels, interface and call spec.
_ARITIES: tuple[tuple[dict[str, Any], Any, type[PointwiseCall]], ...] = (
    ({"cpu": UnaryCpuKernel, "cuda": UnaryCudaKernel}, UnaryFwdInterface, UnaryCall),
    ({"cpu": BinaryCpuKernel, "cuda": BinaryCudaKernel}, BinaryFwdInterface, BinaryCall),
    ({"cpu": TernaryCpuKernel, "cuda": TernaryCudaKernel}, TernaryFwdInterface, TernaryCall),
)
_NUMBERS = {"int", "float", "Number"}
#: Says which tensors a call writes, not what it computes.
_EFFECTS = {"inplace"}


class PointwiseOp(Op):
    """Base of the operators that compute each element of the output from one element of each input.

    A subclass named like its manifest entry is complete: constructor, kernels and docstring follow from the entry.
    """

    _call_type: ClassVar[type[PointwiseCall]]
    _function: ClassVar[str]
    #: Fields of the call spec that are tensors, with their names in the entry.
    _tensors: ClassVar[tuple[tuple[str, str], ...]]
    #: Parameters that are arguments of the kernel, and those that are compiled in.
    _numbers: ClassVar[tuple[str, ...]] = ()
    _choices: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        entry = cls.__dict__.get("entry") or manifest.try_load_entry(cls.__name__)
        if entry is not None:
            kernels, interface, cls._call_type = _ARITIES[len(entry.signature.inputs) - 1]
            cls.kernel_types, cls.interfaces = cls.__dict__.get("kernel_types", kernels), {"pointwise": interface}
            cls._function = function_name(cls.__name__)
            fields = (*cls._call_type.operand_names, "output")
            cls._tensors = tuple(zip(fields, (*entry.signature.inputs, *entry.signature.outputs), strict=True))
            params = [param for name, param in entry.signature.params.items() if name not in _EFFECTS]
            cls._numbers = tuple(param.name for param in params if _is_number(param))
            cls._choices = tuple(param.name for param in params if not _is_number(param))
            cls.gradient = gradient.GRADIENTS.get(cls.__name__)
            if "__init__" not in cls.__dict__:
                cls.__init__ = _constructor(cls, entry)  # type: ignore[method-assign]
            if cls.__doc__ is None:
                cls.__doc__ = _docstring(entry)
        super().__init_subclass__(**options)

    def _scalars(self, facts: CallFacts) -> tuple[Any, ...]:
        """The run-time arguments of the scalar function after its tensors."""
        return tuple([getattr(self, name) for name in self._numbers])

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        values = {
            "device": facts.device,
            "function": self._function,
            "options": tuple([(name, getattr(self, name)) for name in self._choices]) if self._choices else (),
            "scalars": self._scalars(facts) if self._numbers else (),
        }
        for field, name in self._tensors:
            values[field] = facts[name]
        return self._call_type.made(values)


def pointwise(name: str, module: str) -> type[PointwiseOp]:
    """The class of a pointwise operator.

    Args:
        name: of its manifest entry.
        module: where the class is found by this name, which is how it pickles.
    """
    return type(name, (PointwiseOp,), {"__module__": module})


@lru_cache(maxsize=256)
def function_name(op: str) -> str:
    """The scalar function of an operator: ``LeakyReluFwdOp`` has ``leaky_relu``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op.removesuffix("Op").removesuffix("Fwd")).lower()


def _is_number(param: ParamDecl) -> bool:
    return {part.strip() for part in param.type.split("|")} - {"None"} <= _NUMBERS


def _constructor(cls: type[PointwiseOp], entry: Entry) -> Any:
    """``__init__`` with the parameters of the entry, each of which becomes an attribute."""
    params = entry.signature.params.values()
    defaults = {f"default_{param.name}": param.default for param in params}
    parts = []
    for keyword in (False, True):
        parts += ["*"] if keyword else []
        for param in params:
            if param.kw_only == keyword:
                default = "" if param.required else f" = default_{param.name}"
                parts.append(f"{param.name}: {_annotation(param)}{default}")
    parts.append("target: str | None = None")
    lines = [
        f"def __init__(self, {', '.join(parts)}) -> None:",
        *(f"    self.{param.name} = {param.name}" for param in params),
        "    base.__init__(self, target=target)",
    ]
    namespace: dict[str, Any] = {"base": Op, "Literal": Literal, **defaults}
    exec("\n".join(["from __future__ import annotations", *lines]), namespace)
    made = namespace["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _annotation(param: ParamDecl) -> str:
    """The type of a parameter as Python writes it."""
    parts = [part.strip() for part in param.type.split("|")]
    literals = [part for part in parts if part[0] in "'\""]
    named = [{"Number": "int | float | bool"}.get(part, part) for part in parts if part not in literals]
    return " | ".join(([f"Literal[{', '.join(literals)}]"] if literals else []) + named)


def _docstring(entry: Entry) -> str:
    """The docstring of a class: what the entry says."""
    written, signature = entry.raw["signature"], entry.signature
    inputs = [f"- {name}: ``{item['shape']}``, {item['dtype']}" for name, item in written["inputs"].items()]
    outputs = [f"`{name}`: ``{item['shape']}``, {item['dtype']}" for name, item in written["outputs"].items()]
    indices = ", ".join(f"{name}: {kind}" for name, kind in (written.get("forall") or {}).items())
    args = [f"{name}: {decl.type}, as in ``{entry.ref_api}``." for name, decl in signature.params.items()]
    args.append("target: which set of kernels serves the op; None decides by the device of each call.")
    call = f"``op({', '.join(written['inputs'])})`` with {indices}:"
    returns = f"Returns {', '.join(outputs)}."
    lines = [
        f"``{entry.ref_api}`` at every element; floats are computed in float32 and rounded once.",
        "",
        "Args:",
        *(f"    {line}" for line in args),
        "",
        "Call:",
        *_wrapped(call),
        "",
        *(f"    {line}; any strides." for line in inputs),
        "",
        *_wrapped(returns),
        "",
        "Raises:",
        "    CheckError: a tensor or parameter violates the manifest entry; the message names the declaration.",
        "    DispatchError: no kernel serves the call on this device.",
    ]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="    ")
