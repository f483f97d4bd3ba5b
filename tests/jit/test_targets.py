"""CPU targets by name."""

from __future__ import annotations

import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from tests.store.helpers import environment
from tileops import jit
from tileops.errors import SettingsError
from tileops.jit.cpu import target as targets
from tileops.jit.pool import target_of


def test_llvm_knows_every_name() -> None:
    code = (
        "from tileops.jit.cpu.target import CPU_NAMES, target_machine\n"
        "from tileops.jit.pool import target_of\n"
        "print(*(bool(target_machine(target_of(name))) for name in CPU_NAMES))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"True"}
    assert "recognized" not in done.stderr, "LLVM says so of a CPU or feature that it does not know"


@pytest.mark.parametrize(
    ("name", "lanes", "features"),
    [
        ("ivybridge", 4, ()),
        ("znver3", 8, ("fma", "f16c")),
        ("skylake-avx512", 16, ("avx512vl",)),
        ("znver4", 16, ("avx512bf16",)),
        ("graniterapids", 16, ("avx512fp16", "amx-bf16")),
    ],
)
def test_a_cpu_means_its_extensions(name: str, lanes: int, features: tuple[str, ...]) -> None:
    target = target_of(name)
    assert (target.name, target.cpu, target.lanes) == (name, name, lanes)
    for feature in features:
        assert target.has(feature)
        assert f"+{feature}" in target.features.split(",")
    assert not target.has("avx512fp16") or name == "graniterapids"


def test_what_the_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {**llvm.get_host_cpu_features(), "avx512bf16": False}
    monkeypatch.setattr(targets.llvm, "get_host_cpu_features", lambda: host)
    targets._missing.cache_clear()
    try:
        with pytest.raises(SettingsError, match=r"TILEOPS_CPU='znver4': this CPU \(.*\) lacks .*avx512bf16"):
            jit.cpu_target("znver4")
        assert target_of("znver4").has_avx512bf16
    finally:
        targets._missing.cache_clear()


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(SettingsError, match="'icelake'; did you mean icelake-client or icelake-server"):
        jit.cpu_target("icelake")
