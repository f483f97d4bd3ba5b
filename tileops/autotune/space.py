"""The tile parameters of a kernel: which values they may take and which combinations fit a call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

Config = Mapping[str, Any]
Constraint = Callable[[Config, Any], bool] | str


class TileSpace:
    """A finite search space, declared on a kernel class.

        tile_space = TileSpace(
            {"MR": (6, 8, 14), "NV": (2, 4), "MC": (56, 112)},
            constraints=("MC % MR == 0", lambda config, call: config["MC"] <= max(call.d.shape[0], 16)),
            bucket=lambda call: {"M": power_of_two(call.mnk[0]), "N": call.mnk[1], "K": call.mnk[2]},
        )

    Args:
        parameters: the values of each parameter by name, in the order in which they are tried.
        constraints: each an expression over the parameter names, or a function of (config, call). A point
            must satisfy all; they are checked again whenever a recorded choice is applied to another call.
        bucket: the problem of a call, as plain values by name: calls of one bucket share a tuning result. By
            default the shapes, where all axes but the last are rounded up to a power of two.

    Raises:
        ValueError: a parameter has no values or repeats one, or an expression names something else than
            parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Any]],
        constraints: Sequence[Constraint] = (),
        bucket: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        self.parameters: dict[str, tuple[Any, ...]] = {name: tuple(values) for name, values in parameters.items()}
        for name, values in self.parameters.items():
            # Not a set: True and 1 are different values of a parameter.
            if not values or len({(type(value), value) for value in values}) != len(values):
                raise ValueError(f"tile parameter {name}={values!r}: give at least one value, each once")
        self.constraints = tuple(constraints)
        self._checks = tuple(self._check(constraint) for constraint in constraints)
        self.bucket = bucket

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, sorted."""
        return tuple(sorted(self.parameters))

    @property
    def size(self) -> int:
        """Number of combinations, constraints aside."""
        return math.prod(len(values) for values in self.parameters.values())

    def is_valid(self, config: Config, call: Any = None) -> bool:
        """Whether `config` names every parameter, takes values of the space and satisfies the constraints
        for `call`.

        A constraint that raises counts as not satisfied.
        """
        if config.keys() != self.parameters.keys():
            return False
        for name, value in config.items():
            if not any(type(value) is type(known) and value == known for known in self.parameters[name]):
                return False
        return self.admits(config, call)

    def admits(self, config: Config, call: Any = None) -> bool:
        """Whether `config` satisfies the constraints for `call`; its values need not be of the space."""
        try:
            return all(check(config, call) for check in self._checks)
        except Exception:  # a constraint may divide by an extent of 0, ask an absent tensor, ...
            return False

    def points(self, call: Any = None) -> Iterator[dict[str, Any]]:
        """Every point that is valid for `call`, the last parameter varying fastest."""
        for values in itertools.product(*self.parameters.values()):
            config = dict(zip(self.parameters, values, strict=True))
            if self.admits(config, call):
                yield config

    def _check(self, constraint: Constraint) -> Callable[[Config, Any], bool]:
        if callable(constraint):
            return constraint
        code = compile(constraint, "<constraint>", "eval")
        unknown = set(code.co_names) - self.parameters.keys()
        if unknown:
            raise ValueError(f"constraint {constraint!r} names {sorted(unknown)}, which are no tile parameters")
        return _Expression(code)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}: {values}" for name, values in self.parameters.items())
        return f"TileSpace({{{inner}}})"


class _Expression:
    """A constraint written as an expression over the parameter names."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    def __call__(self, config: Config, call: Any) -> bool:
        return bool(eval(self._code, {"__builtins__": {}}, dict(config)))


def power_of_two(extent: int) -> int:
    """The least power of two that is not below `extent`; 0 for 0."""
    return 0 if extent <= 0 else 1 << (extent - 1).bit_length()
