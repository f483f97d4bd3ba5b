"""Ops as torch operators: what torch.compile, export, autograd, profilers and transforms see of a call.

Every op class with call-time tensors is one operator ``tileops::<name>`` with the schema

    (Tensor x, Tensor? weight, str call) -> Tensor

where `call` is the canonical JSON of the construction parameters and the target. The implementation finds an
op of that class and JSON, or builds one, so a compiled or exported graph needs no Python object. An op with
effects has one operator for each effect branch: ``relu_fwd_writes_x(Tensor(a!) x, str call) -> ()``. Tensors
passed at construction follow the inputs.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tileops.errors import BackwardError, CheckError
from tileops.manifest.adts import ADTValue, to_object
from tileops.ops import lookup
from tileops.ops.calling import Slot
from tileops.ops.dtypes import dtype_of, name_of
from tileops.ops.effects import FRESH, Effects, check_written
from tileops.ops.gradients import autograd_functions, transformable

if TYPE_CHECKING:
    from tileops.ops.base import Op

#: The library object owns the registrations: it lives as long as the process.
_library = torch.library.Library("tileops", "FRAGMENT")

_REBUILT_LIMIT = 256
_rebuilt: OrderedDict[tuple[type[Op], str], Op] = OrderedDict()
_rebuilt_lock = threading.Lock()
#: Ops with construction-time tensors, which only these tell apart; few, because each keeps its tensors alive.
_HOLDERS_LIMIT = 64
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, type(None))
_holders: OrderedDict[tuple[Any, ...], Op] = OrderedDict()
_alive: weakref.WeakValueDictionary[tuple[type[Op], str], Op] = weakref.WeakValueDictionary()


class _Calling(threading.local):
    """The op whose call is on its way through the dispatcher, so that the implementation runs on that very
    object.
    """

    op: Op | None = None


calling = _Calling()


# Names


def operator_name(cls: str) -> str:
    """ "rms_norm_fwd" for "RMSNormFwdOp", "rope_fwd" for "RoPEFwdOp"."""
    text = cls.removesuffix("Op")
    for mixed in ("RoPE", "MoE", "YaRN"):  # camel-cased abbreviations are one word
        text = text.replace(mixed, mixed.capitalize())
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", text)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()


def schema_of(name: str, slots: Sequence[Slot], outputs: int, writes: Sequence[int] = ()) -> str:
    """The operator's schema. Inputs keep their names; the last argument is always ``str call``.

    Args:
        name: the operator.
        slots: its tensors.
        outputs: how many new tensors it returns.
        writes: positions of the tensors that it writes.
    """
    marks = {place: f"({chr(ord('a') + number)}!)" for number, place in enumerate(writes)}
    inputs = ", ".join(
        f"Tensor{marks.get(place, '')}{'?' if slot.optional else ''} {slot.name}" for place, slot in enumerate(slots)
    )
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    return f"{name}({inputs}, str call) -> {results}"


# Construction parameters as text


def travelling(construction: Any, held: Mapping[str, Any]) -> dict[str, Any]:
    """The construction parameters that travel as text: all but tensors, which are arguments of the operator."""
    return {
        name: construction.values[name] if isinstance(construction.values[name], ADTValue) else value
        for name, value in construction.params.items()
        if name not in held
    }


def encode(params: Mapping[str, Any], target: str | None) -> str:
    """Canonical JSON of an op's construction: equal ops give equal text.

    Raises:
        TypeError: a value cannot be written down.
    """
    values = {name: _plain(value) for name, value in params.items()}
    return json.dumps({"params": values, "target": target}, sort_keys=True, separators=(",", ":"))


def decode(call: str) -> tuple[dict[str, Any], str | None]:
    """The construction parameters and the target that `encode` wrote down."""
    found = json.loads(call)
    return {name: _value(value) for name, value in found["params"].items()}, found["target"]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return {"dtype": name_of(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, ADTValue):
        return {"adt": [value.adt, value.kind, [[name, _plain(item)] for name, item in value.fields]]}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"float": repr(value)}  # JSON has no inf and no nan
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a construction parameter of type {type(value).__name__} cannot travel in a graph: {value!r}")


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        if kind == "tuple":
            return tuple(_value(item) for item in text)
        if kind == "adt":
            adt, constructor, fields = text
            return to_object(ADTValue(adt, constructor, tuple((name, _value(item)) for name, item in fields)))
        if kind == "device":
            return torch.device(text)
        return dtype_of(text) if kind == "dtype" else float(text)
    return value


# From text back to an op


def remember(op: Op) -> None:
    """Makes a live op the one that graphs with its construction run on."""
    if not op._held:  # their text does not tell such ops apart
        _alive[type(op), op._call] = op


def find(cls: type[Op], call: str, held: Mapping[str, torch.Tensor | None] | None = None) -> Op:
    """The op that a graph node runs on: the caller, else a living equal one, else one built from `call`.

    Args:
        cls: class of the op.
        call: its construction as text.
        held: its construction-time tensors.
    """
    current = calling.op
    if current is not None and type(current) is cls and current._call == call:
        return current
    if held:
        return _holding(cls, call, held)
    alive = _alive.get((cls, call))
    if alive is not None:
        return alive
    with _rebuilt_lock:
        op = _rebuilt.get((cls, call))
        if op is None:
            params, target = decode(call)
            op = _rebuilt[cls, call] = cls(**params, target=target)
            if len(_rebuilt) > _REBUILT_LIMIT:
                _rebuilt.popitem(last=False)
        else:
            _rebuilt.move_to_end((cls, call))
    return op


def _holding(cls: type[Op], call: str, held: Mapping[str, torch.Tensor | None]) -> Op:
    """An op with these very tensors, built at the first call of a graph that passes them."""
    key = (cls, call, *(id(tensor) for tensor in held.values()))
    with _rebuilt_lock:
        op = _holders.get(key)
        if op is not None:
            _holders.move_to_end(key)
            return op
        params, target = decode(call)
        op = cls(**params, **held, target=target)
        # A holder keeps its tensors alive, so no id in a key is given to another one. Tracing has tensors of its own.
        plain = all(type(tensor) in _PLAIN_TENSORS for tensor in held.values())
        if plain and all(op._held[name] is tensor for name, tensor in held.items()):
            _holders[key] = op
            if len(_holders) > _HOLDERS_LIMIT:
                _holders.popitem(last=False)
    return op


# Registration

#: For each operator that writes nothing, the function that stands for it inside torch.func.
_transformable: dict[Any, type[torch.autograd.Function]] = {}


def register(cls: type[Op], slots: Sequence[Slot], held: Sequence[str], effects: Effects) -> Any:
    """Defines the operator of one effect branch of an op class: schema, implementation for every device, fake
    function, autograd.

    Args:
        cls: the class.
        slots: the call-time tensors in forward order, then those of the construction.
        held: names of the latter.
        effects: what the operator writes and returns.

    Returns:
        The operator overload, called as ``operator(*tensors, call)``.
    """
    name = operator_name(cls.__name__) + effects.suffix
    schema = schema_of(name, slots, effects.fresh, effects.writes)
    lookup.define(_library, schema)
    split = len(slots) - len(held)

    def op_of(tensors: Sequence[Any], call: str) -> Op:
        return find(cls, call, dict(zip(held, tensors[split:], strict=True)))

    def implementation(*arguments: Any) -> Any:
        *tensors, call = arguments
        result = op_of(tensors, call)._eager_call(tensors[:split])
        return result if effects.fresh == len(effects.results) else effects.only_fresh(result)

    def fake(*arguments: Any) -> Any:
        *tensors, call = arguments
        return effects.only_fresh(op_of(tensors, call)._fake(tensors[:split]))

    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tileops::{name}", fake, lib=_library)
    operator = getattr(torch.ops.tileops, name).default
    if effects.writes:
        through_bits = _writing_through_bits(cls.__name__, [slot.name for slot in slots], operator, effects)
        for key in ("Negative", "Conjugate"):
            _library.impl(name, through_bits, key)
    if not effects.writes:  # what writes its inputs says in `attach` that it has no formula
        if cls.gradient is None:
            setup_context, backward = _remember_inputs(cls.__name__), _missing_backward
        else:
            declared = zip(cls.entry.signature.outputs, effects.results, strict=True)
            outputs = [output for output, place in declared if place == FRESH]
            setup_context, backward = autograd_functions(
                cls.gradient, [slot.name for slot in slots], outputs, partial(find, cls)
            )
        torch.library.register_autograd(f"tileops::{name}", backward, setup_context=setup_context, lib=_library)
        _transformable[operator] = transformable(operator, setup_context, backward, partial(_no_tangents, cls.__name__))
    return operator


def _writing_through_bits(
    op: str, names: Sequence[str], operator: Callable[..., Any], effects: Effects
) -> Callable[..., Any]:
    """What an operator that writes does with tensors whose values have another sign than their memory: it runs on
    copies, and what it wrote to a copy is written back. Torch's own fallback needs operators that return what they
    write.
    """

    def through_bits(*arguments: Any) -> Any:
        *tensors, call = arguments
        check_written(op, names, tensors, effects)  # of copies it would not say a thing
        plain = [None if tensor is None else tensor.resolve_conj().resolve_neg() for tensor in tensors]
        result = operator(*plain, call)
        for place in effects.writes:
            if plain[place] is not tensors[place]:
                tensors[place].copy_(plain[place])
        return result

    return through_bits


class _Unformulated(torch.autograd.Function):
    """New results of an operator that also writes its inputs, as functions of those inputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op: str, count: int, *tensors: torch.Tensor) -> Any:
        results = tuple(tensor.view_as(tensor) for tensor in tensors[:count])
        return results[0] if count == 1 else results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.op, count, *tensors = inputs
        nothing: list[Any] = [None] * (2 + count)
        ctx.inputs = nothing + [(tensor.shape, tensor.dtype) for tensor in tensors[count:]]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _missing_backward(ctx, *grads)


def refuse_written_gradients(op: str, tensors: Sequence[torch.Tensor | None], writes: Sequence[int]) -> None:
    """A call that writes a tensor changes what autograd remembers of it, for which there is no formula.

    Raises:
        BackwardError: a written tensor requires a gradient.
    """
    if torch.is_grad_enabled() and any((t := tensors[place]) is not None and t.requires_grad for place in writes):
        raise BackwardError(f"{op}: writing a tensor that requires a gradient: {_no_formula(op)}")


def attach(op: str, fresh: Any, tensors: Sequence[torch.Tensor | None]) -> Any:
    """The new results of a call that wrote tensors, such that ``backward()`` through them says that there is no
    formula.
    """
    needing = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    results = () if fresh is None else fresh if isinstance(fresh, tuple) else (fresh,)
    differentiable = [item for item in results if item.is_floating_point()]
    if not needing or not differentiable or not torch.is_grad_enabled():
        return fresh
    attached = _Unformulated.apply(op, len(differentiable), *differentiable, *needing)
    new = iter(attached if isinstance(attached, tuple) else (attached,))
    whole = tuple(next(new) if item.is_floating_point() else item for item in results)
    return whole if isinstance(fresh, tuple) else whole[0]


def _remember_inputs(op: str) -> Callable[[Any, tuple, Any], None]:
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.op = op
        ctx.inputs = [(t.shape, t.dtype) if isinstance(t, torch.Tensor) else None for t in inputs]

    return setup_context


def _missing_backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Reaches `missing_gradient` for every input that needs a gradient. As an operator of its own it lets a
    compiler trace the backward pass of a model that never runs it.
    """
    grad = next(item for item in grads if item is not None)
    results: list[torch.Tensor | None] = []
    for needed, facts in zip(ctx.needs_input_grad, ctx.inputs, strict=True):
        if needed and facts is not None:
            shape, dtype = facts
            results.append(torch.ops.tileops.missing_gradient(grad, shape, ctx.op).to(dtype))
        else:
            results.append(None)
    return tuple(results)


def _missing_gradient(grad: torch.Tensor, size: Sequence[int], op: str) -> torch.Tensor:
    raise BackwardError(_no_formula(op))


def _no_formula(op: str) -> str:
    return (
        f"{op}: backward: the operator has no gradient formula. Call it under torch.no_grad() or "
        f"torch.inference_mode(), or on detached tensors; to train, use the PyTorch function that its "
        f"documentation names"
    )


def refuse_tangents(op: str, tensors: Sequence[torch.Tensor | None]) -> None:
    """Forward-mode differentiation would drop the tangents of an operator without a formula in silence.

    Raises:
        BackwardError: a tensor carries a tangent.
    """
    for tensor in tensors:
        if tensor is not None and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            _no_tangents(op)


def _no_tangents(op: str, *context: Any) -> NoReturn:
    raise BackwardError(
        f"{op}: forward-mode differentiation: the operator has no formula for it. Pass tensors without "
        f"tangents, or use the PyTorch function that its documentation names"
    )


def explain_autocast(error: CheckError, tensors: Sequence[torch.Tensor | None]) -> None:
    """A dtype that does not fit under autocast: the caller may have expected autocast to convert it.

    Raises:
        CheckError: the same failure, with a word about autocast.
    """
    kinds = {tensor.device.type for tensor in tensors if tensor is not None and tensor.device.type != "meta"}
    if "dtype" in error.declaration and any(torch.is_autocast_enabled(kind) for kind in kinds):
        text = str(error).removeprefix(f"{error.op}: {error.declaration}: ")
        raise CheckError(error.op, error.declaration, f"{text} (autocast is on, and changes no dtype here)") from error


def call(operator: Any, *arguments: Any) -> Any:
    """Calls an operator; where a transform of ``torch.func`` refuses to differentiate it, the function that stands for
    it there (see `transformable`).
    """
    try:
        return operator(*arguments)
    except RuntimeError as error:
        function = _transformable.get(operator)
        if function is None or "functorch transforms" not in str(error):
            raise
    return function.apply(*arguments)


lookup.define(_library, "missing_gradient(Tensor grad, SymInt[] size, str op) -> Tensor")
_library.impl("missing_gradient", _missing_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("tileops::missing_gradient", lambda grad, size, op: grad.new_empty(size), lib=_library)
