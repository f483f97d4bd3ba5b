"""Matrix multiplication against the float64 reference: sizes around every tile edge, layouts, special values,
threads.

Inputs are drawn so that results have unit variance (b is scaled by ``K ** -0.5``): then the tolerances of the
dtypes (1e-5, 1.6e-2, 1e-3, relative plus absolute) bound what a float32 sum of K products may be off, for
every K.
"""

from __future__ import annotations

import pytest
import torch

from tests.ops.helpers import FLOATS, INSTRUCTION_SETS, at_threads, bits, build, check, on_device, spec_of
from tileops import settings
from tileops.errors import SettingsError
from tileops.gemm import GemmFwdOp
from tileops.jit import cpu_target
from tileops.kernels.base import TensorSpec
from tileops.kernels.gemm import paths
from tileops.kernels.gemm.call_spec import GemmCall
from tileops.kernels.gemm.gemm_cpu import GemmCpuKernel
from tileops.workloads import gemm, inputs

pytestmark = pytest.mark.in_tree_kernels

LAYOUTS = [(False, True), (False, False), (True, True), (True, False)]


def operands(
    m: int, n: int, k: int, dtype: torch.dtype, trans_a: bool = False, trans_b: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    a_shape, b_shape = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    a = inputs.draw(a_shape, torch.float32, inputs.generator("GemmFwdOp", "a"))
    b = inputs.draw(b_shape, torch.float32, inputs.generator("GemmFwdOp", "b")) * max(k, 1) ** -0.5
    return on_device(a.to(dtype)), on_device(b.to(dtype))


def call_of(
    a: torch.Tensor, b: torch.Tensor, trans_a: bool = False, trans_b: bool = True, packed: str | None = None
) -> GemmCall:
    m, n = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
    d = TensorSpec.contiguous(str(a.dtype).removeprefix("torch."), (m, n))
    return GemmCall(spec_of(a), spec_of(b), d, trans_a, trans_b, packed)


# Rows: every class of few rows, and below, at and above the 14 and 32 rows of the register tiles.
# Columns and k: below, at and above a panel of 16, two panels, a step of 32, and several chunks of k.
ROWS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 65]
INNER = [(1, 1), (2, 3), (15, 31), (16, 32), (17, 33), (33, 64), (66, 100), (31, 577)]


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sizes_around_every_tile_edge(dtype: torch.dtype, m: int) -> None:
    op = GemmFwdOp()
    for n, k in INNER:
        a, b = operands(m, n, k, dtype)
        check(op(a, b), gemm.gemm(a, b), controls=m * n > 2, context=f"M={m} N={n} K={k}")


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_transposed_operands(dtype: torch.dtype, trans_a: bool, trans_b: bool) -> None:
    op = GemmFwdOp(trans_a, trans_b)
    for m, n, k in ((1, 40, 70), (6, 37, 129), (45, 70, 33), (1, 1, 5), (70, 17, 1)):
        a, b = operands(m, n, k, dtype, trans_a, trans_b)
        want = gemm.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
        check(op(a, b), want, context=f"M={m} N={n} K={k}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_packing_of_columns_changes_no_bit(dtype: torch.dtype) -> None:
    for m, n, k in ((45, 70, 133), (100, 97, 700)):
        a, b = (x.cpu() for x in operands(m, n, k, dtype, True, False))
        chosen = paths.path(call_of(a, b, True, False))
        assert chosen.b_columns
        assert chosen.a_columns == cpu_target().has_amx
        one, two = (at_threads(count, lambda a=a, b=b: GemmFwdOp(True, False)(a, b)) for count in (1, 2))
        assert torch.equal(bits(one), bits(two))
        assert torch.equal(bits(one), bits(GemmFwdOp()(a.t().contiguous(), b.t().contiguous())))


@pytest.mark.parametrize("m", [2, 40])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout_of_both_operands(dtype: torch.dtype, m: int) -> None:
    op = GemmFwdOp()
    a, b = operands(m, 37, 67, dtype)
    want = gemm.gemm(a, b)
    for name, view in inputs.layouts(a):
        check(op(view, b), want, context=f"a {name}")
    for name, view in inputs.layouts(b):
        d = op(a, view)
        check(d, want, context=f"b {name}")
        assert d.is_contiguous()


@pytest.mark.parametrize("dtype", FLOATS)
def test_expanded_operands(dtype: torch.dtype) -> None:
    op = GemmFwdOp()
    for m in (3, 40):
        a, b = operands(m, 21, 50, dtype)
        for axis in (0, 1):
            left, right = inputs.expanded(a, axis), inputs.expanded(b, axis)
            check(op(left, b), gemm.gemm(left, b), context=f"a expanded along {axis}")
            check(op(a, right), gemm.gemm(a, right), context=f"b expanded along {axis}")


@pytest.mark.parametrize("offset", range(16))
def test_storage_offsets(offset: int) -> None:
    for dtype in FLOATS:
        for m in (1, 33):
            a, b = operands(m, 34, 66, dtype)
            d = GemmFwdOp()(inputs.at_offset(a, offset), inputs.at_offset(b, 15 - offset))
            check(d, gemm.gemm(a, b))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (40, 50, 0)])
def test_empty_extents(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for dtype in FLOATS:
        a, b = operands(m, n, k, dtype)
        assert torch.equal(GemmFwdOp()(a, b), torch.zeros(m, n, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_long_sums_and_many_blocks(dtype: torch.dtype) -> None:
    for m, n, k in ((1, 70, 9000), (12, 40, 5000), (70, 300, 2100), (600, 90, 700)):
        a, b = operands(m, n, k, dtype)
        check(GemmFwdOp()(a, b), gemm.gemm(a, b), controls=True, context=f"M={m} N={n} K={k}")


def test_so_many_rows_that_b_is_packed_first() -> None:
    a, b = operands(1100, 70, 90, torch.bfloat16)
    assert paths.path(call_of(a.cpu(), b.cpu())).pack_b
    check(GemmFwdOp()(a, b), gemm.gemm(a, b), controls=True)


@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_stay_where_they_belong(dtype: torch.dtype, m: int) -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        a, b = operands(m, 40, 70, dtype)
        # Numbers whose later parts vanish in any splitting, zeros, and a special value met by all of them.
        b[:, 5] = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=dtype).repeat(10)
        a[m - 1, 5] = value
        check(GemmFwdOp()(a, b), gemm.gemm(a, b), context=f"a has {value}")
        a, b = operands(m, 40, 70, dtype)
        b[39, 69] = value
        a[:, 69] = 1.0
        check(GemmFwdOp()(a, b), gemm.gemm(a, b), context=f"b has {value}")
        a[0, 69] = -torch.inf
        check(GemmFwdOp()(a, b), gemm.gemm(a, b), context=f"infinity meets {value}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_integers_are_exact(dtype: torch.dtype) -> None:
    """Whatever a product is taken apart into: all that float32 holds on the way is exact, and rounded once."""
    generator = inputs.generator("GemmFwdOp", "integers")
    op, ones = GemmFwdOp(), on_device(torch.ones(33, 64, dtype=dtype))
    assert (op(ones, ones) == 64).all()
    # The last pair has numbers that need three parts of eight bits.
    for k, large, small in ((64, 9, 9), (2048, 9, 9), (100, 128, 128), (30, 1 << 18, 2)):
        if dtype != torch.float32 and large > 128:
            continue
        for m in (1, 16, 40):
            a = torch.randint(1 - large, large, (m, k), generator=generator).double()
            b = torch.randint(1 - small, small, (50, k), generator=generator).double()
            for left, right in ((a, b), (b, a)):
                d = op(on_device(left.to(dtype)), on_device(right.to(dtype)))
                assert torch.equal(d.cpu(), (left @ right.t()).to(dtype)), f"M={m} K={k} below {large} and {small}"


def test_a_product_with_the_identity_is_exact() -> None:
    """Every float32 from 2**-102 to the largest, and nothing overflows or is lost on the way."""
    generator = inputs.generator("GemmFwdOp", "bits")
    x = torch.randint(-(1 << 31), 1 << 31, (200, 40), generator=generator).to(torch.int32).view(torch.float32)
    largest = torch.finfo(torch.float32).max
    x = torch.where(x.isfinite() & (x.abs() > 2.0**-102), x, largest)
    x[1], x[2] = -largest, torch.arange(0x7F7F7FEC, 0x7F7F8014, dtype=torch.int32).view(torch.float32)
    one = torch.eye(40)
    assert torch.equal(GemmFwdOp()(on_device(x), on_device(one)).cpu(), x)
    assert torch.equal(GemmFwdOp()(on_device(one), on_device(x)).cpu(), x.t())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-8), (torch.float16, 3e-6)])
def test_errors_have_no_preferred_sign(dtype: torch.dtype, most: float) -> None:
    generator = inputs.generator("GemmFwdOp", "positive")
    a, b = ((torch.rand(rows, 64, generator=generator) + 1).to(dtype) for rows in (100, 300))
    want = gemm.gemm(a, b)
    d = GemmFwdOp()(on_device(a), on_device(b)).cpu().double()
    assert abs(float(((d - want) / want).mean())) < most


@pytest.mark.parametrize("m", [1, 16, 44])
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_and_extreme_products_are_those_of_torch(dtype: torch.dtype, m: int) -> None:
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    values = [
        torch.inf,
        -torch.inf,
        torch.nan,
        0.0,
        -0.0,
        largest,
        -largest,
        least,
        1.0,
        -2.5,
        257.0,
        0.1,
        65537.0,
        3e4,
    ]
    if dtype != torch.float16:
        values += [1e-30, -1e20, 16777215.0, 1.9999999]
    b = torch.tensor(values).to(dtype)[:, None]
    if dtype == torch.float32:
        b[2] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # a NaN with no bit in its upper half
    a = b[torch.arange(m) % len(b)]
    d = GemmFwdOp()(on_device(a), on_device(b)).cpu()
    want = (a.float() * b.float().t()).to(dtype)
    # AMX takes subnormal numbers for zeros.
    torch.testing.assert_close(d, want, rtol=1e-6, atol=least, equal_nan=True)


def test_results_just_below_the_largest_number_are_finite() -> None:
    """Also where parts of the operands, rounded up, would give an infinite product."""
    largest = torch.finfo(torch.float32).max
    a = torch.rand(64, generator=inputs.generator("GemmFwdOp", "large")) * 3 + 1e4
    for scale in (1.0, 2.0**60, 2.0**-10, 2.0**100):
        left = a * scale
        right = (largest * (1 - 1e-6) / left.double()).float()
        d = GemmFwdOp()(on_device(left.diag()), on_device(right.diag())).cpu()
        torch.testing.assert_close(d.diag(), left * right, rtol=1e-6, atol=0.0)
        assert (d - d.diag().diag() == 0).all()


def test_results_overflow_as_rounding_does() -> None:
    a = on_device(torch.full((40, 64), 300.0, dtype=torch.float16))
    for rows in (a[:1], a):
        d = GemmFwdOp()(rows, a)
        assert torch.equal(d, torch.full_like(d, torch.inf))
    a = on_device(torch.full((40, 8), 1e19))
    assert torch.equal(GemmFwdOp()(a, a), torch.full((40, 40), torch.inf))


@pytest.mark.parametrize("m", [1, 8, 48])
def test_float32_is_as_accurate_as_torch(m: int) -> None:
    a, b = operands(m, 200, 2000, torch.float32)
    want = gemm.gemm(a, b)

    def error(d: torch.Tensor) -> float:
        return float((d.double() - want).norm() / want.norm())

    assert error(GemmFwdOp()(a, b)) < max(2 * error(a @ b.t()), 1e-6)
    # All products of one sign: nothing may be lost systematically.
    a, b = a.abs(), b.abs()
    want = gemm.gemm(a, b)
    assert error(GemmFwdOp()(a, b)) < 1e-6


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-60, 2.0**60, 2.0**100])
def test_float32_scales_with_its_inputs(scale: float) -> None:
    a, b = operands(40, 50, 300, torch.float32)
    small = GemmFwdOp()(a * scale, b)
    check(small / scale, gemm.gemm(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    op = GemmFwdOp()
    for m, n, k in ((1, 300, 1500), (7, 300, 1500), (530, 130, 1500)):
        a, b = (x.cpu() for x in operands(m, n, k, dtype))
        one, two = (at_threads(count, lambda a=a, b=b: op(a, b)) for count in (1, 2))
        assert torch.equal(bits(one), bits(two))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    a, b = operands(100, 60, 700, dtype)
    op = GemmFwdOp()
    assert torch.equal(op(a, b)[:33], op(a[:33], b))


def test_sizes_and_strides_are_not_compiled_in() -> None:
    for dtype in FLOATS:
        layouts = (None, *paths.packed_layouts(str(dtype).removeprefix("torch.")))
        seen = set()
        for m in (1, 2, 3, 4, 5, 9, 16, 17, 31, 32, 33, 64, 200, 300, 512, 600, 1000, 2000):
            for n, k in ((1, 1), (64, 64), (100, 577), (4096, 4096)):
                for packed in layouts:
                    call = call_of(
                        torch.empty(m, k, dtype=dtype, device="meta"),
                        torch.empty(n, k, dtype=dtype, device="meta"),
                        packed=packed,
                    )
                    programs = GemmCpuKernel.programs(call, GemmCpuKernel.default_config(call))
                    seen |= {program for name, program in programs.items() if name == "main"}
        assert len(seen) <= 8 * len(layouts)


def small_space(call: GemmCall) -> list[dict[str, object]]:
    """Every value of each tile parameter at least once."""
    points = list(GemmCpuKernel.tile_space.points(call))
    chosen: list[dict[str, object]] = []
    for name in GemmCpuKernel.tile_space.parameters:
        for value in {point[name] for point in points}:
            if not any(point[name] == value for point in chosen):
                chosen.append(next(point for point in points if point[name] == value))
    return chosen


@pytest.mark.parametrize("dtype", FLOATS)
def test_points_of_the_tile_space(dtype: torch.dtype) -> None:
    a, b = (x.cpu() for x in operands(70, 150, 1100, dtype))
    call, want, d = call_of(a, b), gemm.gemm(a, b), torch.empty(70, 150, dtype=dtype)
    assert GemmCpuKernel.tile_space.is_valid(GemmCpuKernel.default_config(call), call)
    points = small_space(call)
    assert len(points) > 2
    for config in points:
        build(GemmCpuKernel, call, **config)(a, b, d.fill_(torch.nan))
        check(d, want, context=str(config))


def test_calls_without_tile_parameters_have_one_point() -> None:
    a, b = operands(1, 64, 64, torch.float32)
    call = call_of(a.cpu(), b.cpu())
    assert list(GemmCpuKernel.tile_space.points(call)) == [GemmCpuKernel.default_config(call)]


@INSTRUCTION_SETS
def test_narrower_instruction_sets(instruction_set: str, dtype: torch.dtype) -> None:
    with settings.scope(cpu=instruction_set):
        try:
            cpu_target()
        except SettingsError as error:
            pytest.skip(str(error))
        for m, n, k in ((1, 33, 70), (2, 18, 31), (6, 33, 70), (20, 33, 70), (50, 70, 33)):
            for trans_a, trans_b in LAYOUTS:
                a, b = (x.cpu() for x in operands(m, n, k, dtype, trans_a, trans_b))
                d = torch.full((m, n), torch.nan, dtype=dtype)
                build(GemmCpuKernel, call_of(a, b, trans_a, trans_b))(a, b, d)
                want = gemm.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
                check(d, want, context=f"M={m} N={n} K={k} {trans_a=} {trans_b=}")


def test_other_dtypes_are_refused_with_a_reason() -> None:
    a, b = torch.empty(2, 3, dtype=torch.float64), torch.empty(4, 3, dtype=torch.float64)
    assert "float64" in str(GemmCpuKernel.refusal(call_of(a, b)))
