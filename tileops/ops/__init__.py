"""Host side of the operators: checks, plans, kernel choice, dispatch to torch; op classes by family."""

from tileops.ops import lookup

lookup.install()
