"""What a manifest entry adds to an op class: its inputs, torch operators and call functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tileops.manifest.signature import OUT
from tileops.ops import calling, dispatch, effects, signature_codegen, without_tensors

if TYPE_CHECKING:
    from tileops.manifest.entry import Entry
    from tileops.ops.base import Op


def generate(cls: type[Op], entry: Entry) -> None:
    """Adds what the manifest entry implies to an op class.

    An entry with call-time tensors and no composition gets torch operators, one for each effect branch. A
    composite op runs its stages, which have theirs; those without call-time tensors share one (see `without_tensors`).
    """
    slots = slots_of(entry)
    held = [calling.Slot(name, cpu=decl.cpu, optional=decl.optional is not None) for name, decl in _held(entry)]
    cls.entry = entry
    cls._signature = signature_codegen.signature_for(entry)
    cls._slots = tuple(slots)
    cls._input_names = tuple(slot.name for slot in slots)
    cls._held_slots = tuple(held)
    possible = effects.possible_effects(entry)
    cls._plain = not effects.has_effects(entry) and not held
    cls._operators = {}
    if entry.has_boundary:
        names = [slot.name for slot in held]
        cls._operators = {found: dispatch.register(cls, [*slots, *held], names, found) for found in possible}
        stem = dispatch.operator_name(cls.__name__)
        cls.compile_op_names = tuple(stem + found.suffix for found in possible)
    if entry.composition:
        # Its own `forward` calls its stages, each of which has an operator.
        cls.__call__ = calling.generate_composed(cls.__name__, cls.__module__, slots, returns_of(entry))  # type: ignore[method-assign]
        return
    operator = next(iter(cls._operators.values())) if cls._plain and cls._operators else None
    cls._operator = operator
    if not slots:
        operator = None if held else without_tensors.operator
        if operator is not None:
            without_tensors.register(cls)
        call, eager = calling.generate_without_tensors(
            cls.__name__,
            cls.__module__,
            len(entry.signature.outputs),
            returns_of(entry),
            operator,
            without_tensors.dispatched,
        )
    else:
        call, eager = calling.generate(
            cls.__name__, cls.__module__, slots, returns_of(entry), operator, cls._packed_input
        )
    for name, function in (("__call__", call), ("forward", call), ("_eager", eager)):
        setattr(cls, name, function)


def _held(entry: Entry) -> list[tuple[str, Any]]:
    """The construction-time tensors of an entry."""
    return [(name, param.tensor) for name, param in entry.signature.params.items() if param.tensor is not None]


def returns_of(entry: Entry) -> str:
    """Annotation of what a call returns."""
    items = [
        "torch.Tensor" if decl.nullable is None else "torch.Tensor | None" for decl in entry.signature.outputs.values()
    ]
    return "None" if not items else items[0] if len(items) == 1 else f"tuple[{', '.join(items)}]"


def slots_of(entry: Entry) -> list[calling.Slot]:
    """The call-time tensors of an entry in forward order, ``out`` among them."""
    declared = entry.signature.inputs
    written = entry.raw["signature"]
    is_complex = "complex" in str(written)
    slots = []
    for name in entry.signature.forward_order:
        if name == OUT:
            slots.append(calling.Slot(OUT, optional=True, is_complex=is_complex, type="buffer of the result"))
            continue
        decl = declared[name]
        slots.append(
            calling.Slot(
                name,
                optional=decl.optional is not None,
                kw_only=decl.kw_only,
                is_complex=is_complex,
                type="{dtype} {shape}".format(**written["inputs"][name]),
                cpu=decl.cpu,
            )
        )
    return slots
