"""The instruction set that CPU kernels are compiled for."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
import platform
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import llvmlite.binding as llvm

from tileops import settings
from tileops.errors import SettingsError

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AMX = ("amx-tile", "amx-bf16", "amx-int8")
_AMX_OTHER = ("amx-fp16", "amx-complex", "amx-fp8", "amx-movrs", "amx-avx512", "amx-tf32", "amx-transpose")
# What the two portable levels contain, as far as code generation here asks.
_LEVELS = {
    "x86-64-v3": ("x86-64-v3", "sse2 sse4.1 sse4.2 avx avx2 fma f16c bmi bmi2"),
    "generic": ("x86-64", "sse2"),
}
# What every 64-bit CPU has and no kernel asks for.
_BASE = frozenset(["64bit", "cmov", "cx8", "fxsr", "mmx", "sse"])
_V2 = "sse2 sse3 ssse3 sse4.1 sse4.2 popcnt cx16 sahf"
_V3 = f"{_V2} avx avx2 fma f16c bmi bmi2 lzcnt movbe xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_ICE_LAKE = f"{_V4} avx512vnni avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq gfni"
# CPUs by LLVM's names, with the extensions that code for them may use. Others that some of them have stay unused, so
# that it is known, and checked before anything runs, what a machine must have.
_NAMED = {
    name: frozenset(features.split())
    for names, features in (
        ("nehalem westmere sandybridge ivybridge silvermont goldmont tremont btver2", _V2),
        ("haswell broadwell skylake bdver4 znver1 znver2 znver3 alderlake raptorlake meteorlake", _V3),
        ("arrowlake lunarlake pantherlake gracemont sierraforest grandridge clearwaterforest", _V3),
        ("skylake-avx512", _V4),
        ("cascadelake", f"{_V4} avx512vnni"),
        ("cooperlake", f"{_V4} avx512vnni avx512bf16"),
        ("icelake-client icelake-server tigerlake rocketlake", _ICE_LAKE),
        ("znver4 znver5", f"{_ICE_LAKE} avx512bf16"),
        (
            "sapphirerapids emeraldrapids graniterapids graniterapids-d",
            f"{_ICE_LAKE} avx512bf16 avx512fp16 amx-tile amx-bf16 amx-int8",
        ),
    )
    for name in names.split()
}
CPU_NAMES = ("native", *_LEVELS, *_NAMED)
"""What `cpu_target` knows."""

_elsewhere: ContextVar[bool] = ContextVar("tileops_elsewhere", default=False)


@dataclass(frozen=True)
class CpuTarget:
    """A CPU that code is generated for.

    Attributes:
        name: the setting that chose it: ``native``, ``x86-64-v3``, ``generic`` or LLVM's name of a CPU.
        cpu: LLVM's name of the CPU.
        features: LLVM feature string, sorted (empty where `cpu` implies all).
        enabled: the enabled features.
        lanes: float32 lanes of a vector: 16 (AVX-512), 8 (AVX2) or 4.
    """

    name: str
    cpu: str
    features: str
    enabled: frozenset[str]
    lanes: int
    device: str = "cpu"

    def has(self, feature: str) -> bool:
        """Whether LLVM's feature `feature` (for example ``"avx512bf16"``) may be used."""
        return feature in self.enabled

    @property
    def has_fma(self) -> bool:
        return self.has("fma")

    @property
    def has_f16c(self) -> bool:
        return self.has("f16c")

    @property
    def has_sse41(self) -> bool:
        return self.has("sse4.1")

    @property
    def has_avx512(self) -> bool:
        return self.lanes == 16

    @property
    def has_avx512bf16(self) -> bool:
        return self.lanes == 16 and self.has("avx512bf16")

    @property
    def has_amx(self) -> bool:
        """AMX tiles with bfloat16 products may be used in this process."""
        return self.lanes == 16 and self.has("amx-tile") and self.has("amx-bf16")

    def describe(self) -> dict[str, str | int]:
        """Plain values for `tileops doctor` and for the key of an artifact."""
        return {"arch": "x86-64", "cpu": self.cpu, "features": self.features, "lanes": self.lanes}

    def __str__(self) -> str:
        extras = [name for name in ("avx512bf16", "avx512fp16", "amx-bf16") if self.has(name)]
        return f"{self.cpu} ({self.lanes} float32 lanes{''.join(', ' + name for name in extras)})"


@functools.cache
def enable_amx() -> bool:
    """Asks the kernel for permission to use AMX tile data in this process, once; True if AMX may be used.

    Linux grants the 8 KiB tile state only on request (``arch_prctl(ARCH_REQ_XCOMP_PERM,
    XFEATURE_XTILEDATA)``).
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    if not llvm.get_host_cpu_features().get("amx-tile", False):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None, use_errno=True).syscall(arch_prctl, request_permission, tile_data) == 0


def cpu_target(name: str | None = None) -> CpuTarget:
    """The target called `name`, by default the one that ``TILEOPS_CPU`` chooses.

    Raises:
        SettingsError: there is no such target, the host lacks what it needs (but see `compiling_elsewhere`), or the
            host is not an x86-64 CPU.
    """
    try:
        target = _target(name or settings.current().cpu)
    except SettingsError as error:
        raise error if name else SettingsError(f"TILEOPS_CPU: {error}") from None
    missing = () if _elsewhere.get() else _missing(target.name)
    if missing:
        raise SettingsError(
            f"TILEOPS_CPU={target.name!r}: this CPU ({llvm.get_host_cpu_name()}) lacks {', '.join(missing)}. "
            "Choose 'native' or 'generic'."
        )
    return target


@contextlib.contextmanager
def compiling_elsewhere() -> Iterator[None]:
    """Inside the block targets are planned and compiled for that this machine cannot run."""
    token = _elsewhere.set(True)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def require_name(name: str) -> None:
    """Raises:
    SettingsError: `cpu_target` knows no target called `name`.
    """
    if name not in CPU_NAMES:
        longer = [known for known in CPU_NAMES if known.startswith(name)]
        near = longer or difflib.get_close_matches(name, CPU_NAMES, n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise SettingsError(f"no CPU target is called {name!r}; {meant}known are {', '.join(CPU_NAMES)}")


@functools.cache
def _target(name: str) -> CpuTarget:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise SettingsError(
            f"CPU kernels are compiled for x86-64 only; this machine is {platform.machine()}. Use another device."
        )
    require_name(name)
    host = llvm.get_host_cpu_features()
    if name in _LEVELS:
        cpu, features = _LEVELS[name]
        enabled = frozenset(features.split())
        return CpuTarget(name, cpu, "", enabled, _lanes(enabled))
    if name in _NAMED:
        cpu, enabled = name, _NAMED[name]
        listed = sorted(host.keys() - _BASE)
    else:
        cpu, enabled = llvm.get_host_cpu_name(), frozenset(feature for feature, on in host.items() if on)
        if not enable_amx():
            enabled -= frozenset(_AMX + _AMX_OTHER)
        listed = sorted(host)
    text = ",".join(("+" if feature in enabled else "-") + feature for feature in listed)
    return CpuTarget(name, cpu, text, enabled, _lanes(enabled))


def _lanes(enabled: frozenset[str]) -> int:
    if all(feature in enabled for feature in _AVX512):
        return 16
    return 8 if "avx2" in enabled and "fma" in enabled else 4


@functools.cache
def _missing(name: str) -> tuple[str, ...]:
    """What the host lacks of a target."""
    target, host = _target(name), llvm.get_host_cpu_features()
    missing = {feature for feature in target.enabled if not host.get(feature, False)}
    if target.has("amx-tile") and not enable_amx():
        missing.add("amx-tile")
    return tuple(sorted(missing))


@functools.cache
def target_machine(target: CpuTarget) -> llvm.TargetMachine:
    """llvmlite's code generator for `target`; its code is position independent."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
    )
