"""The environment variables: what is refused names the variable, its value and what is expected."""

from __future__ import annotations

from typing import Any

import pytest

import tileops
from tileops.errors import SettingsError
from tileops.settings import Settings


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("TILEOPS_CACHE_SIZE", "-1", "2GiB"),
        ("TILEOPS_CACHE_SIZE", "9" * 400, "size"),
        ("TILEOPS_CACHE_DIR", "~nobody-of-that-name/cache", "home directory"),
        ("TILEOPS_CACHE_PATH", "/images:~nobody-of-that-name/cache", "home directory"),
        ("TILEOPS_JIT", "FORBID", "lazy, forbid"),
        ("TILEOPS_CPU", "Sapphire Rapids", "sapphirerapids"),
    ],
)
def test_values_that_cannot_be_used(variable: str, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({variable: text})
    assert str(caught.value).startswith(f"{variable}={text!r}: ")
    assert words in str(caught.value)


def test_an_empty_value_is_the_default() -> None:
    assert Settings.from_environ({"TILEOPS_CACHE_SIZE": "", "TILEOPS_JIT": ""}) == Settings()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"jit": "Forbid"}, "jit='Forbid': expected one of lazy, forbid"),
        ({"jit": 1}, "jit=1: expected "),
        ({"cache_size": "much"}, "cache_size='much': expected a size"),
        ({"cache_size": 2.5}, "cache_size=2.5: expected int"),
        ({"cash_dir": "/x"}, "cash_dir: no such setting; there are cache_dir, "),
    ],
)
def test_a_scope_takes_what_the_environment_takes(overrides: dict[str, Any], words: str) -> None:
    before = tileops.settings.current()
    with pytest.raises(SettingsError) as caught, tileops.settings.scope(**overrides):
        pass
    assert words in str(caught.value)
    assert tileops.settings.current() is before
    with tileops.settings.scope(cache_size="3MiB", cache_path=("/a",), jit="forbid") as now:
        assert (now.cache_size, now.cache_path, now.jit) == (3 << 20, ("/a",), "forbid")
