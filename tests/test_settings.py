"""The environment variables: what is refused names the variable, its value and what is expected."""

from __future__ import annotations

import pytest

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
