"""Tile spaces."""

from __future__ import annotations

import pytest

from tileops.autotune.space import TileSpace, power_of_two


def test_points_come_in_the_order_of_the_space():
    space = TileSpace({"m": (1, 2), "n": (8, 4)})
    assert list(space.points()) == [
        {"m": 1, "n": 8},
        {"m": 1, "n": 4},
        {"m": 2, "n": 8},
        {"m": 2, "n": 4},
    ]
    assert space.size == 4
    assert space.names == ("m", "n")


def test_constraints_are_expressions_or_functions_of_the_call():
    space = TileSpace({"m": (2, 3, 4), "n": (4, 6)}, ("n % m == 0", lambda config, call: config["m"] <= call))
    assert list(space.points(3)) == [{"m": 2, "n": 4}, {"m": 2, "n": 6}, {"m": 3, "n": 6}]
    assert space.is_valid({"n": 4, "m": 4}, 4)
    assert not space.is_valid({"n": 4, "m": 4}, 3)


@pytest.mark.parametrize("config", [{}, {"m": 1, "n": 1}, {"m": 5}, {"m": True}, {"m": 1.0}])
def test_a_config_of_another_space_is_not_valid(config):
    assert not TileSpace({"m": (1, 2)}).is_valid(config)


def test_a_constraint_that_raises_is_not_satisfied():
    space = TileSpace({"m": (0, 1)}, ("4 % m == 0",))
    assert list(space.points()) == [{"m": 1}]


@pytest.mark.parametrize("parameters", [{"m": ()}, {"m": (1, 1)}])
def test_a_parameter_needs_distinct_values(parameters):
    with pytest.raises(ValueError, match="m="):
        TileSpace(parameters)
    TileSpace({"m": (1, True)})


@pytest.mark.parametrize("text", ["k > 1", "__import__('os')", "m.real == print"])
def test_an_expression_names_parameters_only(text):
    with pytest.raises(ValueError, match="constraint"):
        TileSpace({"m": (1,)}, (text,))


def test_power_of_two():
    assert [power_of_two(n) for n in (0, 1, 2, 3, 16, 17, 4097)] == [0, 1, 2, 4, 16, 32, 8192]
