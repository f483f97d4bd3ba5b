"""CUDA without a GPU: targets, compiling, artifacts, the store, what an entry does with its arguments."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tileops import jit
from tileops.errors import KernelCompileError, LaunchError
from tileops.jit import _numba_cuda
from tileops.jit.artifact import Artifact
from tileops.jit.cuda.compile import parse_resources
from tileops.jit.cuda.loader import CudaEntry
from tileops.jit.keys import key_for
from tileops.jit.program import Program
from tileops.kernels.base import DeviceFacts, Kernel, TensorSpec
from tileops.kernels.elementwise.call_spec import BinaryCall, GatedCall
from tileops.kernels.elementwise.gated_cuda import GatedCudaKernel
from tileops.kernels.elementwise.pointwise_cuda import BinaryCudaKernel
from tileops.kernels.norm.call_spec import RMSNormCall
from tileops.kernels.norm.rms_norm_cuda import RMSNormCudaKernel
from tileops.kernels.rope.call_spec import LongRoPECall, RoPECall, RoPEPositionIdsCall
from tileops.kernels.rope.rope_cuda import LongRoPECudaKernel, RoPECudaKernel, RoPEPositionIdsCudaKernel

ARCHS = ("sm_80", "sm_90a")


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec.contiguous(dtype, shape, "cuda")


def abstract_calls(arch: str, dtype: str = "bfloat16") -> Iterator[tuple[type[Kernel], Any]]:
    """One call of each kernel as `tileops warm --arch` makes it: no tensor, no GPU."""
    device = DeviceFacts("cuda", 0, arch)

    def t(*shape: int) -> TensorSpec:
        return tensor(*shape, dtype=dtype)

    yield (
        RMSNormCudaKernel,
        RMSNormCall(x=t(8, 4096), weight=t(4096), output=t(8, 4096), normalized_ndim=1, eps=1e-5, device=device),
    )
    yield GatedCudaKernel, GatedCall(function="silu_and_mul", x=t(8, 512), output=t(8, 256), device=device)
    yield (
        BinaryCudaKernel,
        BinaryCall(function="add", a=t(8, 512), b=t(8, 512), output=t(8, 512), scalars=(1,), device=device),
    )
    yield (
        RoPECudaKernel,
        RoPECall(
            x=t(1, 8, 4, 64),
            output=t(1, 8, 4, 64),
            rope_layout="neox",
            input_layout="2d",
            base=1e4,
            device=device,
        ),
    )
    yield (
        LongRoPECudaKernel,
        LongRoPECall(
            x=t(1, 8, 4, 64),
            output=t(1, 8, 4, 64),
            rope_layout="neox",
            input_layout="2d",
            base=1e4,
            rescale_factors=tensor(32, dtype="float32"),
            device=device,
        ),
    )
    yield (
        RoPEPositionIdsCudaKernel,
        RoPEPositionIdsCall(
            x=t(8, 4, 64),
            position_ids=tensor(8, dtype="int64"),
            output=t(8, 4, 64),
            rotary_dim=64,
            base=1e4,
            max_position=4096,
            device=device,
        ),
    )


def program_of(kernel: type[Kernel], call: Any) -> Program:
    assert kernel.refusal(call) is None
    (program,) = kernel.programs(call, kernel.default_config(call)).values()
    return program


def add_program() -> Program:
    return program_of(*list(abstract_calls("sm_90"))[2])


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(arch: str) -> None:
    for kernel, call in abstract_calls(arch.rstrip("a")):
        program = program_of(kernel, call)
        artifact = jit.compile_program(program, jit.cuda_target(arch))
        facts = artifact.facts
        assert artifact.parts["cubin"][:4] == b"\x7fELF"
        assert facts["arch"] == arch
        assert facts["block"] == program.block
        assert 0 < facts["registers"] <= 65536 // program.block
        assert facts["spill_bytes"] == facts["stack_bytes"] == facts["dynamic_smem"] == 0


def test_an_artifact_survives_the_store_format() -> None:
    program = add_program()
    target = jit.cuda_target("sm_80")
    key = key_for(program, target)
    artifact = jit.compile_program(program, target)
    again = Artifact.decode(artifact.encode(key), key)
    assert again.parts["cubin"] == artifact.parts["cubin"]
    assert tuple(again.facts["args"]) == program.args


def test_warming_for_another_machine_fills_the_store_once() -> None:
    program = program_of(*next(abstract_calls("sm_90", "float16")))
    target = jit.cuda_target("sm_90")
    assert jit.warm(program, target)
    assert not jit.warm(program, target)
    assert key_for(program, target) != key_for(program, jit.cuda_target("sm_80"))


def digest_of_add() -> str:
    parts = jit.compile_program(add_program(), jit.cuda_target("sm_90a")).parts
    return hashlib.sha256(parts["cubin"]).hexdigest()


def test_two_processes_compile_the_same_bytes() -> None:
    """This one, whatever it has compiled before, and a new one with other hashes."""
    result = subprocess.run(
        [sys.executable, "-c", "from tests.cuda.test_offline import digest_of_add; print(digest_of_add())"],
        capture_output=True,
        text=True,
        env={
            "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": sys.path[0],
        },
        check=False,
        cwd=".",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest_of_add()


def test_the_device_of_a_call_never_enters_its_program() -> None:
    for small, large in zip(abstract_calls("sm_80"), abstract_calls("sm_90"), strict=True):
        assert program_of(*small) == program_of(*large)


@pytest.mark.parametrize(
    ("arch", "capability", "name"),
    [
        ("sm_80", (8, 0), "sm_80"),
        ("sm_86", (8, 6), "sm_86"),
        ("sm_90", (9, 0, "a"), "sm_90a"),
        ("sm_90a", (9, 0, "a"), "sm_90a"),
        ("sm_120", (12, 0, "a"), "sm_120a"),
    ],
)
def test_targets(arch: str, capability: tuple[Any, ...], name: str) -> None:
    target = jit.cuda_target(arch)
    assert target.arch == name
    assert target.capability == capability
    assert target.describe() == {"device": "cuda", "arch": name}


@pytest.mark.parametrize("arch", ["sm_75", "90a", "compute_90", "sm_9", ""])
def test_a_bad_arch_says_what_is_expected(arch: str) -> None:
    with pytest.raises(KernelCompileError, match="sm_"):
        jit.cuda_target(arch)


def test_old_gpus_and_other_dtypes_are_refused_with_the_reason() -> None:
    for kernel, call in abstract_calls("sm_75"):
        assert "8.0 or newer" in str(kernel.refusal(call))
    for kernel, call in abstract_calls("sm_80", "float64"):
        assert "float64" in str(kernel.refusal(call))


def test_a_missing_compiler_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_numba_cuda, "version", lambda: None)
    assert "pip install 'tileops[cuda13]'" in str(_numba_cuda.unavailable())
    monkeypatch.setattr(_numba_cuda, "version", lambda: "0.29.0")
    assert "0.30 or newer below 0.31" in str(_numba_cuda.unavailable())
    monkeypatch.setattr(_numba_cuda, "version", lambda: "0.30.7")
    assert _numba_cuda.unavailable() is None


def test_a_body_that_does_not_compile_names_program_and_arch() -> None:
    program = Program.of("tests.cuda.bodies:wrong", ["ptr"], device="cuda", block=64)
    with pytest.raises(KernelCompileError, match=r"tests\.cuda\.bodies:wrong\(\) for sm_80"):
        jit.compile_program(program, jit.cuda_target("sm_80"))
    odd = Program.of("tests.cuda.bodies:wrong", ["ptr"], device="cuda", block=48)
    with pytest.raises(KernelCompileError, match="32 to 1024 threads, in whole warps"):
        jit.compile_program(odd, jit.cuda_target("sm_80"))


def test_resources_are_read_from_the_assembler_log() -> None:
    log = (
        "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 392 bytes cmem[0]\n"
        "info    : used 40 registers, used 1 barriers, 0 stack, 64 bytes smem, 0 bytes lmem\n"
    )
    resources = parse_resources(log)
    assert (resources.registers, resources.spill_bytes) == (40, 20)
    assert (resources.stack_bytes, resources.static_smem) == (16, 64)
    with pytest.raises(KernelCompileError, match="does not list registers"):
        parse_resources("")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_loading_without_a_gpu_says_what_is_missing() -> None:
    with pytest.raises(LaunchError, match="needs a GPU of that architecture and its driver"):
        jit.get_entry(add_program(), jit.cuda_target("sm_80"))
    with pytest.raises(KernelCompileError, match="name an architecture"):
        jit.cuda_target()


def test_importing_kernels_loads_no_cuda_library() -> None:
    code = (
        "import sys\n"
        "import tileops.kernels.norm.rms_norm_cuda, tileops.kernels.rope.rope_cuda\n"
        "import tileops.kernels.elementwise.pointwise_cuda, tileops.jit.cuda\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('numba', 'cuda')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


class FakeCuda:
    """Stands in for cuda.core and torch.cuda: two GPUs that note what is put on them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.stream, self.launched = 0, "default", []  # type: ignore[var-annotated]
        core = types.ModuleType("cuda.core")
        core.LaunchConfig = lambda **options: options  # type: ignore[attr-defined]
        core.ObjectCode = self  # type: ignore[attr-defined]
        core.launch = lambda *args: self.launched.append(args)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cuda.core", core)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: (self.stream, device))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self.guard)

    def from_cubin(self, cubin: bytes, name: str) -> FakeCuda:
        return self

    def get_kernel(self, name: str) -> str:
        return f"kernel {name}"

    def guard(self, device: int) -> Any:
        fake = self

        class Guard:
            def __enter__(self) -> None:
                self.before, fake.current = fake.current, device

            def __exit__(self, *_: Any) -> None:
                fake.current = self.before

        return Guard()


def fake_entry(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeCuda, CudaEntry]:
    fake = FakeCuda(monkeypatch)
    facts = {"entry": "k", "arch": "sm_90a", "args": ("ptr", "i64", "f32"), "block": 128, "dynamic_smem": 0}
    return fake, CudaEntry(Artifact({"cubin": b""}, facts), add_program())


def test_the_stream_is_looked_up_at_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entry = fake_entry(monkeypatch)
    entry.launch(3, 1, 2, 0.5)
    fake.stream = "other"
    entry.launch(3, 1, 2, 0.5)
    assert [args[0] for args in fake.launched] == [("default", 0), ("other", 0)]
    assert fake.launched[0][1]["grid"] == (3, 1, 1)
    assert fake.launched[0][1]["block"] == (128, 1, 1)


def test_floats_are_packed_at_their_declared_width(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entry = fake_entry(monkeypatch)
    entry.launch(1, 7, -2, 0.1)
    entry.launch(1, 7, -2, np.float32(0.1))
    for args in fake.launched:
        assert args[3:5] == (7, -2)
        assert type(args[5]) is np.float32


def test_a_launch_happens_on_the_device_of_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entry = fake_entry(monkeypatch)
    entry.launch(1, 1, 2, 0.5, device=1)
    assert fake.launched[0][0] == ("default", 1)
    assert fake.current == 0


def test_an_empty_grid_launches_nothing_and_a_huge_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entry = fake_entry(monkeypatch)
    entry.launch(0, 1, 2, 0.5)
    assert fake.launched == []
    with pytest.raises(LaunchError, match="grid of 2147483648 blocks"):
        entry.launch(2**31, 1, 2, 0.5)
