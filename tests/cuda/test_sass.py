"""Machine code of the elementwise and rope kernels: 128-bit accesses, and no local memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cuda import sass
from tests.ptx.harness import ARCHS, DTYPES, artifact_of
from tileops import manifest
from tileops.jit.cuda import cuda_target
from tileops.jit.cuda.compile import assemble
from tileops.jit.program import Program
from tileops.kernels.base import TensorSpec, interface_of
from tileops.ops.planned import PlannedCall
from tileops.ops.warming import planned

OPERATORS = (*manifest.implemented_names("elementwise"), *manifest.implemented_names("rope"))
#: Whether an integer is NaN or infinite is known without reading it.
PREDICATES = ("IsnanFwdOp", "IsinfFwdOp", "IsfiniteFwdOp")
#: One call of each form, in `make test`: operator, case and architecture.
REPRESENTATIVES = (
    ("DropoutFwdOp", "sweep-4KiB-16bit-bfloat16", "sm_80"),
    ("WhereFwdOp", "sweep-4KiB-16bit-float16", "sm_90a"),
    ("SiluAndMulFwdOp", "smollm2-ffn-prefill-bfloat16", "sm_80"),
    ("SinusoidalFwdOp", "sweep-4KiB-16bit-bfloat16", "sm_90a"),
    ("RoPEFwdOp", "smollm2-q-prefill-float16", "sm_80"),
)


@pytest.mark.parametrize(("op", "case", "arch"), REPRESENTATIVES)
def test_representatives(op: str, case: str, arch: str) -> None:
    ((call, program),) = kernels(op, case)
    check(op, call, program, arch)


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", OPERATORS)
def test_every_kernel_of_the_manifest(op: str, arch: str) -> None:
    """In every dtype: each case of an operator is contiguous, one operand or another broadcasts in some."""
    dtypes: set[str] = set()
    for call, program in kernels(op):
        check(op, call, program, arch)
        dtypes.update(tensor.dtype for tensor in call.call.tensors().values())
    assert dtypes >= set(DTYPES) or op.startswith("Bitwise")


def kernels(op: str, case: str | None = None) -> Iterator[tuple[PlannedCall, Program]]:
    """The programs of an operator's cases, in the default configuration, each with the first call that it serves."""
    seen = set()
    for _, call in planned([op], case_ids=None if case is None else [case], arch="sm_80"):
        assert isinstance(call, PlannedCall), call.reason
        for program in call.kernel.programs(call.call, call.kernel.default_config(call.call)).values():
            if program not in seen:
                seen.add(program)
                yield call, program


def check(op: str, call: PlannedCall, program: Program, arch: str) -> None:
    """Fails unless the values are read 128 bits at a time and results as wide as they are written so.

    Narrower results, such as the truth values of a comparison, are as many elements at a time.
    """
    found = accesses(program, arch)
    inputs, output = tensors_of(call)
    values = [tensor for tensor in inputs if tensor.dtype == output.dtype] or list(inputs[:1])
    bits = 128
    if values:
        bits = min(128, 128 * output.itemsize // values[0].itemsize)
        if op in PREDICATES and values[0].dtype not in DTYPES:
            assert not any(kind == "LDG" for kind, _ in found), f"{program} on {arch} reads what it need not: {found}"
        else:
            assert found["LDG", 128] >= len(values), f"{program} on {arch} has too few loads of 128 bits: {found}"
    assert found["STG", bits], f"{program} on {arch} has no stores of {bits} bits: {found}"
    assert sass.local(found) == 0, f"{program} on {arch} uses local memory: {found}"


def tensors_of(call: PlannedCall) -> tuple[tuple[TensorSpec, ...], TensorSpec]:
    """The inputs and the output of a call, all of them contiguous at aligned addresses."""
    present = call.call.tensors()
    assert all(tensor.is_contiguous and tensor.alignment >= 16 for tensor in present.values())
    *inputs, output = interface_of(call.kernel).tensors
    return tuple(present[name] for name in inputs if name in present), present[output]


@functools.cache
def accesses(program: Program, arch: str) -> Counter[tuple[str, int]]:
    """The accesses of a program; some operators share theirs."""
    return sass.accesses(sass.disassemble(artifact_of(program, arch).parts["cubin"]))


def test_what_a_thread_indexes_is_seen_in_local_memory() -> None:
    ptx = """
        .version 8.0
        .target sm_80
        .address_size 64
        .visible .entry tileops_k(.param .u64 out, .param .u64 place) {
            .local .align 16 .b8 kept[256];
            .reg .b64 %rd<6>;
            .reg .b32 %r<3>;
            ld.param.u64 %rd1, [out];
            ld.param.u64 %rd2, [place];
            mov.u64 %rd3, kept;
            add.s64 %rd4, %rd3, %rd2;
            st.local.u64 [%rd4], %rd2;
            ld.local.u32 %r1, [%rd3];
            st.global.u16 [%rd1], %r1;
            ret;
        }
    """
    program = Program.of("tests.cuda.bodies:k", ["ptr", "i64"], device="cuda", block=32)
    found = sass.accesses(sass.disassemble(assemble(ptx, program, cuda_target("sm_80")).parts["cubin"]))
    assert found["STL", 64] == found["LDL", 32] == found["STG", 16] == 1
    assert sass.local(found) == 2
