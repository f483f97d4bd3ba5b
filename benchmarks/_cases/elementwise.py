"""Benchmarked operators of the elementwise family: all of them."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops import elementwise

OPERATORS = [Registration(getattr(elementwise, name)) for name in dir(elementwise) if name.endswith("Op")]
