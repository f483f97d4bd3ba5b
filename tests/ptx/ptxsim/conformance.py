"""One tiny kernel per instruction form that the interpreter models, with inputs that reach its corners.

`tests/ptx/test_conformance.py` runs them in the interpreter; `scripts/device_check.py` runs the same PTX on a
GPU and compares. Only a form that has passed there is confirmed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.ptx.ptxsim.forms import ELEMENTWISE, Form
from tests.ptx.ptxsim.types import PTX_TYPES, is_float

_COUNT = 2048
_HEADER = ".version 7.8\n.target sm_80\n.address_size 64\n"
#: Threads of a block.
BLOCK = 64


@dataclass(frozen=True)
class Case:
    """A kernel and its inputs.

    Attributes:
        name: instruction forms that it confirms, comma-separated.
        ptx: a module with the entry ``conform(inputs..., output)``.
        inputs: arrays, one pointer parameter each.
        output: dtype of the result.
        threads: of the launch, a multiple of `BLOCK`.
        count: elements of the result.
        ulps: how far a float result may be off.
    """

    name: str
    ptx: str
    inputs: tuple[np.ndarray, ...]
    output: np.dtype
    threads: int
    count: int
    ulps: int = 0

    def agrees(self, ours: np.ndarray, theirs: np.ndarray) -> bool:
        """Whether two results are the same bits (any NaN equals any NaN), or within `ulps`."""
        return not self.mismatches(ours, theirs).any()

    def mismatches(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Where two results differ."""
        if ours.dtype.kind in "iu":
            return ours != theirs
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
            both_nan = np.isnan(ours.astype(np.float64)) & np.isnan(theirs.astype(np.float64))
        integer = np.dtype(f"i{ours.dtype.itemsize}")
        ours_bits, theirs_bits = ours.view(integer), theirs.view(integer)
        same = ours_bits == theirs_bits
        if self.ulps:
            distance = np.abs(_ordered(ours_bits) - _ordered(theirs_bits))
            same |= distance <= self.ulps
        return ~(same | both_nan)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Float bits as integers in the order of the floats."""
    wide = bits.astype(np.int64)
    limit = np.int64(1) << (bits.dtype.itemsize * 8 - 1)
    return np.where(wide < 0, -(wide & (limit - 1)), wide)


def cases() -> Iterator[Case]:
    """Every case."""
    for form in ELEMENTWISE.values():
        yield _elementwise(form)
    yield from _structural()


# -- elementwise ---------------------------------------------------------------------------------------------


def _pool(kind: str, rng: np.random.Generator, *, moderate: bool) -> np.ndarray:
    """Interesting values of a PTX type."""
    dtype = PTX_TYPES[kind]
    if kind == "pred":
        return rng.integers(0, 2, 64).astype(np.uint32)
    if is_float(kind):
        limits = np.finfo(dtype) if kind in ("f16", "f32", "f64") else np.finfo(np.float32)
        edges = [0.0, 1.0, 1.5, 2.0, 3.0, np.pi, 0.1, 1 + 2.0**-23, 12582912.0, 0.5, 2.5, 65504.0, 65520.0]
        if not moderate:
            edges += [float(limits.tiny), float(limits.smallest_subnormal), float(limits.max), np.inf, np.nan]
            edges += [2.0**-14, 2.0**-25, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 3.4e38]
        with np.errstate(over="ignore"):
            spread = rng.standard_normal(40) * 2.0 ** rng.integers(-20, 20, 40)
            values = np.array([*edges, *spread]).astype(dtype)
        return np.concatenate((values, -values))
    info = np.iinfo(dtype)
    edges = [0, 1, 2, 3, 5, 7, 31, 32, 33, 255, info.max, info.max - 1, info.min, info.max // 2]
    random = rng.integers(info.min, info.max, 40, dtype=dtype, endpoint=True)
    negative = [-value for value in edges[1:8]] if info.min < 0 else []
    return np.concatenate((np.array(edges + negative, dtype), random))


def _inputs(form: Form) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(sum(map(ord, form.name)))
    columns = []
    moderate = form.name.startswith("fma.rn.f64")
    half = form.name in ("cvt.f32.f16",)
    for position, kind in enumerate(form.sources):
        pool = np.arange(1 << 16, dtype=np.uint16) if half else _pool(kind, rng, moderate=moderate)
        if (form.name.startswith(("shl", "shr")) and position == 1) or (form.name.startswith("bfi") and position > 1):
            pool = np.arange(70, dtype=np.uint32)
        if form.name.startswith(("div.s", "div.u", "rem.s", "rem.u")) and position == 1:
            # Division by zero, and of the smallest integer by -1, are undefined.
            pool = pool[(pool != 0) & (pool != pool.dtype.type(-1 if pool.dtype.kind == "i" else 0))]
        columns.append(pool)
    if len(columns) == 1:
        return (np.resize(columns[0], _COUNT if not half else 1 << 16),)
    # Every pair of the first two as far as they fit, the rest drawn at random.
    pairs = np.array(list(itertools.product(range(len(columns[0])), range(len(columns[1])))))
    chosen = pairs[rng.permutation(len(pairs))]
    chosen = np.resize(chosen, (_COUNT, 2))
    arrays = [columns[0][chosen[:, 0]], columns[1][chosen[:, 1]]]
    arrays += [column[rng.integers(0, len(column), _COUNT)] for column in columns[2:]]
    return tuple(arrays)


def _elementwise(form: Form) -> Case:
    inputs = _inputs(form)
    lines, operands = [], []
    for k, kind in enumerate(form.sources):
        stored = "b32" if kind == "pred" else kind
        lines.append(f".reg .{stored} %s{k};")
        lines.append(f"mad.wide.u32 %address, %i, {PTX_TYPES[stored].itemsize}, %in{k};")
        lines.append(f"ld.global.{stored} %s{k}, [%address];")
        if kind == "pred":
            lines.append(f".reg .pred %q{k};\nsetp.ne.b32 %q{k}, %s{k}, 0;")
        operands.append(f"%q{k}" if kind == "pred" else f"%s{k}")
    result = "b32" if form.result == "pred" else form.result
    lines.append(f".reg .{form.result} %result;")
    lines.append(f"{form.name} %result, {', '.join(operands)};")
    value = "%result"
    if form.result == "pred":
        lines.append(".reg .b32 %flag;\nselp.b32 %flag, 1, 0, %result;")
        value = "%flag"
    width = PTX_TYPES[result].itemsize
    lines.append(f"mad.wide.u32 %address, %i, {width}, %out;\nst.global.{result} [%address], {value};")
    output, threads = _output_dtype(form, result), len(inputs[0])
    count = threads * width // output.itemsize
    return Case(form.name, _module(len(inputs), lines), inputs, output, threads, count, form.ulps)


def _output_dtype(form: Form, result: str) -> np.dtype:
    parts = form.name.split(".")
    if parts[0] == "cvt" and parts[-2] in ("f16", "bf16"):
        return PTX_TYPES[parts[-2]]
    if parts[0] == "cvt" and parts[-2] in ("f16x2", "bf16x2"):
        return PTX_TYPES[parts[-2][:-2]]
    return PTX_TYPES[result]


def _module(inputs: int, lines: list[str], shared: str = "") -> str:
    names = [f"in{k}" for k in range(inputs)] + ["out"]
    params = ",\n".join(f".param .u64 p_{name}" for name in names)
    body = [f".reg .b64 %{name};\nld.param.u64 %{name}, [p_{name}];" for name in names]
    body += [
        ".reg .b32 %i, %block, %thread, %size;\n.reg .b64 %address;",
        "mov.u32 %block, %ctaid.x;\nmov.u32 %size, %ntid.x;\nmov.u32 %thread, %tid.x;",
        "mad.lo.u32 %i, %block, %size, %thread;",
        *lines,
        "ret;",
    ]
    return f"{_HEADER}{shared}\n.visible .entry conform(\n{params}\n)\n{{\n" + "\n".join(body) + "\n}\n"


# -- memory, control flow, warps -----------------------------------------------------------------------------


def _words(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def _structural() -> Iterator[Case]:
    for path in ("", ".nc"):
        for kind, lanes in (("b8", 1), ("b16", 1), ("b32", 1), ("b32", 2), ("b32", 4), ("b64", 1)):
            yield _copy(path, kind, lanes)
    for mode, lane in (("bfly", 5), ("up", 3), ("down", 7), ("idx", 11)):
        yield _shuffle(mode, lane)
    yield _reversal()
    yield _predicated()
    yield _divergence()
    yield _halves()


def _copy(path: str, kind: str, lanes: int) -> Case:
    """Each thread copies `lanes` values."""
    vector = f".v{lanes}" if lanes > 1 else ""
    load, store = f"ld.global{path}{vector}.{kind}", f"st.global{vector}.{kind}"
    names = [f"%v{k}" for k in range(lanes)]
    group = names[0] if lanes == 1 else "{" + ",".join(names) + "}"
    size = PTX_TYPES[kind].itemsize * lanes
    lines = [
        f".reg .{'b16' if kind == 'b8' else kind} {', '.join(names)};",
        f"mad.wide.u32 %address, %i, {size}, %in0;",
        f"{load} {group}, [%address];",
        f"mad.wide.u32 %address, %i, {size}, %out;",
        f"{store} [%address], {group};",
    ]
    threads = 128
    words = _words(threads * size // 4)
    # The result is compared per 16 bits, so that every width has a whole number of them a thread.
    return Case(f"{load}, {store}", _module(1, lines), (words,), np.dtype(np.uint16), threads, threads * size // 2)


def _shuffle(mode: str, lane: int) -> Case:
    clamp = 0 if mode == "up" else 31
    lines = [
        ".reg .b32 %value, %got;",
        "mad.wide.u32 %address, %i, 4, %in0;\nld.global.b32 %value, [%address];",
        f"shfl.sync.{mode}.b32 %got, %value, {lane}, {clamp}, -1;",
        "mad.wide.u32 %address, %i, 4, %out;\nst.global.b32 [%address], %got;",
    ]
    return Case(f"shfl.sync.{mode}.b32", _module(1, lines), (_words(128),), np.dtype(np.uint32), 128, 128)


def _reversal() -> Case:
    """A block turns its values around through shared memory."""
    lines = [
        ".reg .b32 %value, %base, %slot, %other;",
        "mad.wide.u32 %address, %i, 4, %in0;\nld.global.b32 %value, [%address];",
        "mov.u32 %base, row;\nmad.lo.u32 %slot, %thread, 4, %base;\nst.shared.b32 [%slot], %value;",
        "bar.sync 0;",
        "sub.u32 %other, %size, %thread;\nmad.lo.u32 %slot, %other, 4, %base;",
        "ld.shared.b32 %value, [%slot+-4];",
        "mad.wide.u32 %address, %i, 4, %out;\nst.global.b32 [%address], %value;",
    ]
    ptx = _module(1, lines, f".shared .align 16 .b8 row[{4 * BLOCK}];\n")
    return Case("st.shared.b32, bar.sync, ld.shared.b32", ptx, (_words(128),), np.dtype(np.uint32), 128, 128)


def _predicated() -> Case:
    """A guarded load leaves the register alone where the guard is false."""
    lines = [
        ".reg .b32 %value, %bit;\n.reg .pred %p;",
        "and.b32 %bit, %i, 1;\nsetp.ne.b32 %p, %bit, 0;\nmov.b32 %value, 42;",
        "mad.wide.u32 %address, %i, 4, %in0;\n@%p ld.global.nc.b32 %value, [%address];",
        "mad.wide.u32 %address, %i, 4, %out;",
        "@%p st.global.b32 [%address], %value;\n@!%p st.global.b32 [%address], 7;",
    ]
    return Case("@p, @!p", _module(1, lines), (_words(128),), np.dtype(np.uint32), 128, 128)


def _divergence() -> Case:
    """Every thread loops as often as its lane says, then the warp meets again in a shuffle."""
    lines = [
        ".reg .b32 %left, %sum;\n.reg .pred %p;",
        "and.b32 %left, %thread, 31;\nmov.b32 %sum, 1;",
        "again:",
        "setp.eq.u32 %p, %left, 0;\n@%p bra done;",
        "mad.lo.u32 %sum, %sum, 3, %left;\nsub.u32 %left, %left, 1;\nbra.uni again;",
        "done:",
        "shfl.sync.bfly.b32 %sum, %sum, 1, 31, -1;",
        "mad.wide.u32 %address, %i, 4, %out;\nst.global.b32 [%address], %sum;",
    ]
    return Case("bra, bra.uni", _module(1, lines), (_words(4),), np.dtype(np.uint32), 128, 128)


def _halves() -> Case:
    """Vector moves split and join registers, low part first."""
    lines = [
        ".reg .b32 %value;\n.reg .b16 %low, %high;",
        "mad.wide.u32 %address, %i, 4, %in0;\nld.global.b32 %value, [%address];",
        "mov.b32 {%low, %high}, %value;\nmov.b32 %value, {%high, %low};",
        "mad.wide.u32 %address, %i, 4, %out;\nst.global.b32 [%address], %value;",
    ]
    return Case("mov.b32 {a, b}", _module(1, lines), (_words(128),), np.dtype(np.uint32), 128, 128)
