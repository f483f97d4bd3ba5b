"""Writes the call functions of an op class from its inputs: the hot path, as flat as Python can be.

What is generated for a class with a required and an optional input (shortened):

    def __call__(self, x, weight=None):
        if _compiling():                                 # under torch.compile: one node in the graph
            return _operator(x, weight, self._call)
        plan = hot.bare if weight is None else hot.full
        check, tracked = plan.latest
        if check(...) and not <something looks on>:      # the same kind of tensors as the last time
            return plan.run(x, weight)
        calls = plan.calls
        like, tracked = calls.alike
        if not (like(...) and not <something looks on>): # nor of the same kind in other sizes
            calls = None
            if not (type(x) is _Tensor and ... and <guards>):
                return self._dispatched((x, weight))     # torch's dispatcher
        return plan.run(x, weight)                       # the plan by call signature, made on a miss

    def _eager(self, x, weight=None): ...                # by signature, without guards: the operator runs
    this

The call signature holds, for each input, its presence, shape, dtype, device (with the alignment of the
address on CUDA) and strides. Neg and conj bits and the need of a gradient never reach it: such calls take the
dispatcher, which resolves them first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tileops.ops._torch_guards import guards
from tileops.ops.facts import placement
from tileops.ops.plans import execute

#: Tensors of a call up to which it is looked at whether one is passed twice.
_COMPARED = 4


@dataclass(frozen=True)
class Slot:
    """One call-time input as the generated functions see it.

    Attributes:
        name: manifest name, and parameter name.
        optional: may be None, and defaults to it.
        kw_only: passed by keyword only.
        is_complex: may have a complex dtype, and hence a conj bit.
        type: dtype and shape as the entry declares them, for the docstring.
        cpu: stays on the CPU whatever the call device.
    """

    name: str
    optional: bool = False
    kw_only: bool = False
    is_complex: bool = False
    type: str = ""
    cpu: bool = False


def parameter_list(slots: Sequence[Slot], annotate: bool = True) -> str:
    """``self, x: Tensor, weight: Tensor | None = None``"""
    parts = ["self"]
    starred = False
    for slot in slots:
        if slot.kw_only and not starred:
            parts.append("*")
            starred = True
        text = slot.name
        if annotate:
            text += ": torch.Tensor | None = None" if slot.optional else ": torch.Tensor"
        elif slot.optional:
            text += "=None"
        parts.append(text)
    return ", ".join(parts)


def _plain(slot: Slot) -> str:
    name = slot.name
    test = f"(type({name}) is _Tensor or type({name}) is _Parameter) and not {name}.is_neg() and not is_zero({name})"
    if slot.is_complex:
        test += f" and not {name}.is_conj()"
    return f"({name} is None or {test})" if slot.optional else test


def _needs_grad(slot: Slot) -> str:
    test = f"{slot.name}.requires_grad"
    return f"({slot.name} is not None and {test})" if slot.optional else test


def _facts(slot: Slot) -> str:
    name = slot.name
    facts = (
        f"{name}.shape, {name}.dtype, {name}.is_cpu or _placement({name}), {name}.is_contiguous() or {name}.stride()"
    )
    return f"None if {name} is None else ({facts})" if slot.optional else facts


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _operands(slots: Sequence[Slot], packed: str | None) -> str:
    """What a plan runs on: the tensors, with a pack's buffer in place of the tensor that was packed."""
    return ", ".join(
        f"{slot.name} if token is None else token.buffer" if slot.name == packed else slot.name for slot in slots
    )


def _tested(result: str, names: Sequence[str], test: str) -> list[str]:
    """`result` is what a guard of torch says, which ends the process where a tensor is nested."""
    nested = " or ".join(f"{name}.is_nested" for name in names)
    return [
        "try:",
        f"    {result} = not ({nested}) and {test}",
        "except AttributeError:  # one is no tensor",
        f"    {result} = False",
    ]


def _fits(names: Sequence[str]) -> list[str]:
    """Whether the plan serves these tensors; a plan has another test for calls that pass one of them twice. Of many
    tensors no two are compared: such calls are found by signature.
    """
    test = f"check({', '.join(names)})"
    pairs = [f"{a} is {b}" for a, b in itertools.combinations(names, 2)]
    if pairs and len(names) <= _COMPARED:
        test = f"({test} or ({' or '.join(pairs)}) and plan.twice({', '.join(names)}))"
    return _tested("fits", names, test)


def _alike(names: Sequence[str]) -> list[str]:
    """Whether the tensors differ from those of an earlier call in sizes and strides alone."""
    return _tested("alike", names, f"like({', '.join(names)})")


_FINISH = ["plan.used = True", "self._thread.plan = plan", "return result"]


def _quick(slots: Sequence[Slot], packed: str | None) -> list[str]:
    """The latest plan, if it fits. Optional inputs must be all absent or all present for that; an input that
    may be packed is a weight and must be required with all the others.
    """
    names = [slot.name for slot in slots]
    optional = [slot.name for slot in slots if slot.optional]
    required = [slot.name for slot in slots if not slot.optional]
    lines = ["hot = self._hot"]
    latest = "check, tracked = plan.latest"
    if packed is not None:
        lines += [f"plan = hot.of.get(id({packed}), hot.bare)", latest, *_fits(names)]
    elif not optional:
        lines += ["plan = hot.bare", latest, *_fits(names)]
    else:
        lines += [
            f"if {' and '.join(f'{name} is None' for name in optional)}:",
            "    plan = hot.bare",
            f"    {latest}",
            *(f"    {line}" for line in _fits(required)),
            "else:",
            "    plan = hot.full",
            f"    {latest}",
            *(f"    {line}" for line in _fits(names)),
        ]
    everything = ", ".join(names)
    test = f"fits and {guards().quick} and not (tracked and _grad_enabled())"
    run = [f"result = plan.run({_operands(slots, packed)})", *_FINISH]
    if packed is None:
        return [*lines, f"if {test}:", *(f"    {line}" for line in run)]
    return [
        *lines,
        f"if {test}:",
        f"    token = self._call_token({everything})",
        "    if plan.layout == (None if token is None else token.layout):",
        *(f"        {line}" for line in run),
    ]


def _recognise(slots: Sequence[Slot], otherwise: Sequence[str]) -> list[str]:
    """What is known of calls that differ from the latest in sizes alone, as ``calls``; without it, `otherwise`."""
    names = [slot.name for slot in slots]
    optional = [slot.name for slot in slots if slot.optional]
    lines = ["calls = plan.calls", "like, tracked = calls.alike"]
    if optional:
        required = [slot.name for slot in slots if not slot.optional]
        lines += [
            f"if {' and '.join(f'{name} is None' for name in optional)}:",
            *(f"    {line}" for line in _alike(required)),
            "else:",
            *(f"    {line}" for line in _alike(names)),
        ]
    else:
        lines += _alike(names)
    return [
        *lines,
        f"if not (alike and {guards().quick} and not (tracked and _grad_enabled())):",
        "    calls = None",
        *(f"    {line}" for line in otherwise),
    ]


def _by_signature(slots: Sequence[Slot], packed: str | None, calls: str = "") -> list[str]:
    """Signature, plan, run."""
    names = [slot.name for slot in slots]
    facts = [_facts(slot) for slot in slots] or ["self._call_device(())"]
    token = ""
    lines = ["try:"]
    if packed is not None:
        lines.append(f"    token = self._call_token({', '.join(names)})")
        facts.append("None if token is None else token.layout")
        token = ", token"
    return [
        *lines,
        "    key = (",
        *(f"        {item}," for item in facts),
        "    )",
        "    plan = self._plan_of(key)",
        "    if plan is None:",
        f"        plan, run = self._make_plan(key, {_tuple(names)}{token}{calls})",
        "    else:",
        "        run = plan.run or plan.again()",
        f"    result = run({_operands(slots, packed)})",
        "except RuntimeError:",
        f"    self._explain({_tuple(names)})",
        "    raise",
    ]


def _remember(slots: Sequence[Slot], packed: str | None) -> list[str]:
    """Makes the plan the latest one of calls with these optional inputs, or with this weight."""
    optional = [slot.name for slot in slots if slot.optional]
    everything = _tuple([slot.name for slot in slots])
    required = _tuple([slot.name for slot in slots if not slot.optional])
    if packed is not None:
        return ["if plan.renewals:", f"    plan.renew({everything}, calls)", f"hot.remember({packed}, plan)"]
    if not optional:
        return ["if plan.renewals:", f"    plan.renew({everything}, calls)", "hot.bare = plan"]
    absent = " and ".join(f"{name} is None" for name in optional)
    present = " and ".join(f"{name} is not None" for name in optional)
    return [
        f"if {absent}:",
        "    if plan.renewals:",
        f"        plan.renew({required}, calls)",
        "    hot.bare = plan",
        f"elif {present}:",
        "    if plan.renewals:",
        f"        plan.renew({everything}, calls)",
        "    hot.full = plan",
    ]


def source_of(
    slots: Sequence[Slot], returns: str = "torch.Tensor", packed: str | None = None, plain: bool = True
) -> str:
    """The source of ``__call__`` and ``_eager`` for a class with these inputs.

    Args:
        slots: the inputs.
        returns: annotation of the result.
        packed: see `generate`.
        plain: the class has one torch operator, which takes the inputs and returns the results.
    """
    names = [slot.name for slot in slots]
    tests = [_plain(slot) for slot in slots]
    tests += [guards().expression, f"not (_grad_enabled() and ({' or '.join(map(_needs_grad, slots))}))"]
    by_signature = _by_signature(slots, packed)
    traced = f"_operator({', '.join(names)}, self._call)" if plain else f"self._traced({_tuple(names)})"
    unless_plain = [
        "if not (",
        f"    {tests[0]}",
        *(f"    and {test}" for test in tests[1:]),
        "):",
        f"    return self._dispatched({_tuple(names)})",
    ]
    call = ["if _compiling():", f"    return {traced}"]
    if guards().quick is None:
        call += [*unless_plain, *by_signature, *_FINISH]
    else:
        call += [
            *_quick(slots, packed),
            *_recognise(slots, unless_plain),
            *_by_signature(slots, packed, ", calls=calls"),
            *_remember(slots, packed),
            *_FINISH,
        ]
    return "\n".join(
        [
            f"def __call__({parameter_list(slots)}) -> {returns}:",
            *(f"    {line}" for line in call),
            "",
            "",
            f"def _eager({parameter_list(slots, annotate=False)}):",
            *(f"    {line}" for line in (*by_signature, *_FINISH)),
            "",
        ]
    )


def _unknown(tensor: torch.Tensor) -> bool:
    return False


def _doc(slots: Sequence[Slot]) -> str:
    """Inputs as the manifest declares them."""
    lines = [f"    {slot.name}: {slot.type}{', optional' if slot.optional else ''}" for slot in slots]
    return "\n".join(["Runs the op; the manifest declares the tensors.", "", "Args:", *lines, ""])


def generate(
    op: str,
    module: str,
    slots: Sequence[Slot],
    returns: str,
    operator: Callable[..., Any] | None,
    packed: str | None = None,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions ``__call__`` and ``_eager`` of the op class named `op`.

    Args:
        op: class name.
        module: module of the class.
        slots: the call-time inputs in forward order, those passed by keyword only last.
        returns: annotation of the result.
        operator: the torch operator, called as ``operator(*tensors, call)``; None for a class that has one for
            each effect branch, or none.
        packed: input in whose place ``self._call_token(*tensors).buffer`` is launched, or None.
    """
    names: dict[str, Any] = {
        "Any": Any,
        "torch": torch,
        "_Tensor": torch.Tensor,
        "_Parameter": torch.nn.Parameter,
        "_compiling": torch.compiler.is_dynamo_compiling,
        "_grad_enabled": torch.is_grad_enabled,
        "_operator": operator,
        "_placement": placement,
        "is_zero": _unknown,  # where the guards are off, they close this way anyhow
        **guards().names,
    }
    source = source_of(slots, returns, packed, operator is not None)
    namespace = execute(source, f"tileops {op}", names)
    call, eager = _named(op, module, namespace)
    call.__doc__ = _doc(slots)
    return call, eager


def _named(op: str, module: str, namespace: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The generated ``__call__`` and ``_eager``, named as methods of the class."""
    functions = namespace["__call__"], namespace["_eager"]
    for function in functions:
        function.__module__ = module
        function.__qualname__ = f"{op}.{function.__name__}"
    return functions


def generate_composed(op: str, module: str, slots: Sequence[Slot], returns: str) -> Callable[..., Any]:
    """The function ``__call__`` of a composite op: the signature, and `Op._composed`."""
    source = "\n".join(
        [
            f"def __call__({parameter_list(slots)}) -> {returns}:",
            f"    return self._composed({_tuple([slot.name for slot in slots])})",
            "",
        ]
    )
    function = execute(source, f"tileops {op}", {"torch": torch})["__call__"]
    function.__module__ = module
    function.__qualname__ = f"{op}.__call__"
    function.__doc__ = _doc(slots)
    return function


def generate_without_tensors(
    op: str,
    module: str,
    outputs: int,
    returns: str,
    operator: Callable[..., Any] | None,
    dispatched: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions ``__call__`` and ``_eager`` of an op that takes no tensor.

    Args:
        op: class name.
        module: module of the class.
        outputs: how many tensors it returns.
        returns: annotation of the result.
        operator: the torch operator that a graph calls as ``operator(op, call)``, or None.
        dispatched: called with the op where a mode looks on.
    """
    result = "[0]" if outputs == 1 else ""
    lines = [f"def __call__(self) -> {returns}:"]
    if operator is not None:
        lines += [
            "    if _compiling():",
            f"        return {'' if outputs == 1 else 'tuple'}(_operator({op!r}, self._call)){result}",
            f"    if not ({guards().expression}):",
            f"        return {'' if outputs == 1 else 'tuple'}(_dispatched(self)){result}",
        ]
    names = {
        "torch": torch,
        "_compiling": torch.compiler.is_dynamo_compiling,
        "_operator": operator,
        "_dispatched": dispatched,
        **guards().names,
    }
    eager = ["def _eager(self):", *(f"    {line}" for line in (*_by_signature((), None), *_FINISH))]
    source = "\n".join([*lines, "    return self._eager()", "", "", *eager, ""])
    call, eager_call = _named(op, module, execute(source, f"tileops {op}", names))
    call.__doc__ = "Runs the op, which takes no tensor."
    return call, eager_call
