"""The interpreter finds what a GPU would let pass."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.ptxsim import GlobalMemory, PtxError, SimError, launch, parse
from tests.ptx.ptxsim.arithmetic import fma32, fma64


def module(body: str, params: str = ".param .u64 a, .param .u64 b", shared: str = "") -> str:
    return f"""
.version 7.8
.target sm_80
.address_size 64
{shared}
.visible .entry test({params})
{{
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .reg .f32 %f<9>;
    .reg .pred %p<4>;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [a];
    ld.param.u64 %rd1, [b];
    mad.wide.u32 %rd2, %r0, 4, %rd0;
    mad.wide.u32 %rd3, %r0, 4, %rd1;
    {body}
    ret;
}}
"""


def run(body: str, *, size: int = 64, block: int = 64, grid: int = 1, shared: str = "", **options):
    memory = GlobalMemory()
    source = memory.place(np.arange(size, dtype=np.uint32))
    target = memory.place(np.zeros(size, np.uint32), writable=True)
    launch(module(body, shared=shared), memory, grid, block, [source, target], **options)
    return memory.fetch(target, (size,), (4,), np.uint32)


COPY = "ld.global.b32 %r1, [%rd2]; st.global.b32 [%rd3], %r1;"
ROW = ".shared .align 16 .b8 row[256];"
SLOT = "mov.u32 %r2, row; mad.lo.u32 %r3, %r0, 4, %r2; sub.u32 %r4, 63, %r0; mad.lo.u32 %r4, %r4, 4, %r2;"


def test_a_copy():
    np.testing.assert_array_equal(run(COPY), np.arange(64))


def test_a_read_past_the_end_names_instruction_and_thread():
    with pytest.raises(SimError, match=r"block 0 thread 40: load of 4 bytes outside every tensor.*\n.*ld\.global\.b32"):
        run(COPY, size=40)


def test_a_store_past_the_end():
    body = "setp.lt.u32 %p1, %r0, 40; mov.u32 %r1, 5; @%p1 ld.global.b32 %r1, [%rd2]; st.global.b32 [%rd3], %r1;"
    with pytest.raises(SimError, match=r"thread 40: store of 4 bytes outside the writable tensors"):
        run(body, size=40)


def test_a_store_to_an_input():
    with pytest.raises(SimError, match="outside the writable tensors"):
        run("st.global.b32 [%rd2], %r0;")


def test_a_read_between_the_elements_of_a_strided_view():
    memory = GlobalMemory()
    source = memory.place(np.arange(128, dtype=np.uint32)[::2])
    target = memory.place(np.zeros(64, np.uint32), writable=True)
    with pytest.raises(SimError, match="thread 1: load of 4 bytes outside every tensor"):
        launch(module(COPY), memory, 1, 64, [source, target])


def test_a_misaligned_access():
    with pytest.raises(SimError, match=r"thread 0: misaligned global access of 16 bytes"):
        run("add.s64 %rd4, %rd0, 4; ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd4]; st.global.b32 [%rd3], %r1;")


def test_the_read_only_path_must_not_see_a_store_of_the_same_launch():
    with pytest.raises(SimError, match=r"ld\.global\.nc of memory that this launch has written"):
        run("st.global.b32 [%rd3], %r0; ld.global.nc.b32 %r1, [%rd3];")


def test_shared_memory_through_a_barrier():
    body = f"{SLOT} st.shared.b32 [%r3], %r0; bar.sync 0; ld.shared.b32 %r5, [%r4]; st.global.b32 [%rd3], %r5;"
    np.testing.assert_array_equal(run(body, shared=ROW), np.arange(64)[::-1])


def test_a_missing_barrier_before_a_read():
    body = f"{SLOT} st.shared.b32 [%r3], %r0; ld.shared.b32 %r5, [%r4]; st.global.b32 [%rd3], %r5;"
    with pytest.raises(SimError, match=r"race: read without a barrier after another warp's write"):
        run(body, shared=ROW)


def test_a_missing_barrier_before_a_write():
    body = (
        f"{SLOT} st.shared.b32 [%r3], %r0; bar.sync 0; ld.shared.b32 %r5, [%r4]; st.shared.b32 [%r3], %r5;"
        "st.global.b32 [%rd3], %r5;"
    )
    with pytest.raises(SimError, match="race: written while another warp may still read it"):
        run(body, shared=ROW)


def test_two_warps_that_write_one_place():
    with pytest.raises(SimError, match="race: two warps write"):
        run("mov.u32 %r2, row; st.shared.b32 [%r2], %r0;", shared=ROW)


def test_a_read_of_shared_memory_that_nobody_wrote():
    with pytest.raises(SimError, match="shared memory that nobody has written"):
        run("mov.u32 %r2, row; ld.shared.b32 %r1, [%r2];", shared=ROW)


def test_shared_memory_out_of_bounds():
    with pytest.raises(SimError, match="shared access of 4 bytes out of bounds"):
        run("mov.u32 %r2, row; st.shared.b32 [%r2+256], %r0;", shared=ROW)


def test_a_barrier_that_part_of_the_block_skips():
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra SKIP; bar.sync 0; bra OUT; SKIP: bra SKIP; OUT: mov.u32 %r1, 0;"
    with pytest.raises(SimError, match="still runs after"):
        run(body, step_limit=1000)
    # A warp that has left counts as arrived, as on a GPU.
    run("setp.lt.u32 %p1, %r0, 32; @%p1 ret; bar.sync 0;")


def test_a_shuffle_from_a_lane_that_is_not_there():
    shuffle = "shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1;"
    body = f"setp.lt.u32 %p1, %r0, 16; @%p1 bra OUT; {shuffle} OUT: mov.u32 %r1, 0;"
    with pytest.raises(SimError, match="member mask"):
        run(body)


def test_a_register_that_nothing_wrote():
    with pytest.raises(SimError, match="%r7 is read before anything wrote it"):
        run("st.global.b32 [%rd3], %r7;")


def test_an_instruction_that_is_not_modelled():
    with pytest.raises(PtxError, match=r"add\.sat\.s32 is not modelled"):
        run("add.sat.s32 %r1, %r0, 1;")
    with pytest.raises(PtxError, match=r"ld\.global\.ca\.b32 is not modelled"):
        run("ld.global.ca.b32 %r1, [%rd2];")


def test_a_stack_frame_is_refused():
    with pytest.raises(PtxError, match="local memory"):
        parse(module(".local .align 8 .b8 depot[8];"))


def test_arguments_are_held_to_their_parameters():
    memory = GlobalMemory()
    text = module("", params=".param .u64 a, .param .u64 b, .param .f32 c")
    with pytest.raises(SimError, match="pass a NumPy scalar"):
        launch(text, memory, 1, 32, [0, 0, 1.0])
    with pytest.raises(SimError, match="2 arguments for 3 parameters"):
        launch(text, memory, 1, 32, [0, 0])
    with pytest.raises(SimError, match=r"its argument is float64"):
        launch(text, memory, 1, 32, [0, 0, np.float64(1)])


def test_divergent_threads_meet_again():
    body = """
        mov.u32 %r1, %r0; mov.u32 %r2, 0;
        LOOP: setp.eq.u32 %p1, %r1, 0; @%p1 bra OUT; add.u32 %r2, %r2, %r1; sub.u32 %r1, %r1, 1; bra LOOP;
        OUT: shfl.sync.idx.b32 %r3, %r2, 31, 31, -1; st.global.b32 [%rd3], %r3;
    """
    expected = np.repeat([31 * 32 // 2, 63 * 64 // 2], 32)
    np.testing.assert_array_equal(run(body), expected)


def test_fma32_rounds_once():
    from fractions import Fraction

    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, (3, 4000), dtype=np.uint32)
    a, b, c = (np.ascontiguousarray(row).view(np.float32) for row in bits)
    with np.errstate(all="ignore"):
        # products that nearly cancel the addend are where double rounding shows
        c[::2] = -(a[::2] * b[::2])
        result = fma32(a, b, c)
    for x, y, z, got in zip(a, b, c, result, strict=True):
        if not np.isfinite([x, y, z, got]).all():
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(got)) - exact)
        for neighbour in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(-np.inf))):
            if np.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - exact)


def test_fma64_rounds_once():
    from fractions import Fraction

    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 2000))
    c = np.where(rng.random(2000) < 0.5, -(a * b), rng.standard_normal(2000) * 2.0 ** rng.integers(-60, 60, 2000))
    for x, y, z, got in zip(a, b, c, fma64(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert got == float(exact)
