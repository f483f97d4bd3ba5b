"""The operators that the benchmark modules measure, and what each is compared with, by family.

Baselines are named here and formulated in `tileops.workloads`, so that ``tileops bench`` of an installed
package has the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tileops.bench import Case, cases


@dataclass(frozen=True)
class Registration:
    """One operator of a benchmark module.

    Attributes:
        op: its class.
        baselines: what it is compared with.
    """

    op: type
    baselines: tuple[str, ...] = ("torch", "torch-compile")

    @property
    def cases(self) -> list[Case]:
        """Every case of the operator."""
        return cases(self.op)


def rows(*operators: Registration) -> list[Any]:
    """Every ``(operator, case)`` of these, as parameters of a benchmark."""
    return [pytest.param(operator, case, id=str(case)) for operator in operators for case in operator.cases]
