"""References and baselines of the rotary position embeddings.

The baselines use tables of cosines and sines computed beforehand, as models do; only the rotation, and the
lookup by position where positions are an input, is part of a call.
"""

from __future__ import annotations

import torch

from tileops.workloads import Workload


def rotation_angles(positions: torch.Tensor, rotary_dim: int, base: float) -> torch.Tensor:
    """``position * base ** (-2 i / rotary_dim)`` for every position and pair, float64 ``[..., rotary_dim /
    2]``.
    """
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64, device=positions.device)
    return positions.double()[..., None] * base ** (-2.0 * pair / rotary_dim)


def rotate(x: torch.Tensor, angles: torch.Tensor, rope_layout: str) -> torch.Tensor:
    """`x` in float64 with its pairs turned by `angles`, which broadcast to ``[..., D / 2]``."""
    wide = x.double()
    cos, sin = angles.cos(), angles.sin()
    if rope_layout == "neox":
        first, second = wide.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    first, second = wide[..., 0::2], wide[..., 1::2]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


def rope(
    x: torch.Tensor, *, rope_layout: str = "neox", input_layout: str = "1d", base: float = 10000.0
) -> torch.Tensor:
    """Every head vector turned by its position in the sequence, in float64; `x` is ``[S, D]`` or ``[B, S, H,
    D]``.
    """
    seq_len = x.shape[0] if input_layout == "1d" else x.shape[1]
    angles = rotation_angles(torch.arange(seq_len, device=x.device), x.shape[-1], base)
    return rotate(x, angles if input_layout == "1d" else angles[:, None, :], rope_layout)


def rope_neox_position_ids(
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    max_position: int | None = None,
) -> torch.Tensor:
    """The first `rotary_dim` elements of ``x[N, H, D]`` turned by the token's position, in float64; the rest
    as it is.
    """
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    angles = rotation_angles(position_ids, rotary_dim, base)[:, None, :]
    return torch.cat((rotate(x[..., :rotary_dim], angles, "neox"), x[..., rotary_dim:].double()), dim=-1)


_tables: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}


def _cos_sin(
    length: int, dim: int, base: float, dtype: torch.dtype, device: torch.device, *, doubled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[length, dim / 2]``, or ``[length, dim]`` with the halves repeated."""
    key = (length, dim, base, dtype, str(device), doubled)
    if key not in _tables:
        angles = rotation_angles(torch.arange(length, device=device), dim, base)
        if doubled:
            angles = torch.cat((angles, angles), dim=-1)
        _tables[key] = (angles.cos().to(dtype), angles.sin().to(dtype))
    return _tables[key]


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _sequence_tables(
    x: torch.Tensor, input_layout: str, base: float, dtype: torch.dtype, *, doubled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    seq_len = x.shape[0] if input_layout == "1d" else x.shape[1]
    cos, sin = _cos_sin(seq_len, x.shape[-1], base, dtype, x.device, doubled=doubled)
    return (cos, sin) if input_layout == "1d" else (cos[:, None, :], sin[:, None, :])


def _rope_plain(x: torch.Tensor, *, rope_layout: str, input_layout: str, base: float) -> torch.Tensor:
    """The formula of model code: ``x * cos + rotate_half(x) * sin``, or its interleaved twin."""
    if rope_layout == "neox":
        cos, sin = _sequence_tables(x, input_layout, base, x.dtype, doubled=True)
        return x * cos + _rotate_half(x) * sin
    cos, sin = _sequence_tables(x, input_layout, base, x.dtype, doubled=False)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


def _rope_halves(x: torch.Tensor, *, rope_layout: str, input_layout: str, base: float) -> torch.Tensor:
    """Neox by halves; interleaved as a complex product in float32."""
    if rope_layout == "neox":
        cos, sin = _sequence_tables(x, input_layout, base, x.dtype, doubled=False)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    cos, sin = _sequence_tables(x, input_layout, base, torch.float32, doubled=False)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(x.dtype)


def _position_ids_plain(
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    max_position: int,
) -> torch.Tensor:
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = _cos_sin(max_position, rotary_dim, base, x.dtype, x.device, doubled=True)
    cos, sin = cos[position_ids][:, None, :], sin[position_ids][:, None, :]
    if rotary_dim == x.shape[-1]:
        return x * cos + _rotate_half(x) * sin
    turned = x[..., :rotary_dim]
    return torch.cat((turned * cos + _rotate_half(turned) * sin, x[..., rotary_dim:]), dim=-1)


def _position_ids_halves(
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    max_position: int,
) -> torch.Tensor:
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = _cos_sin(max_position, rotary_dim, base, x.dtype, x.device, doubled=False)
    cos, sin = cos[position_ids][:, None, :], sin[position_ids][:, None, :]
    first, second = x[..., :rotary_dim].chunk(2, dim=-1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    if rotary_dim < x.shape[-1]:
        parts.append(x[..., rotary_dim:])
    return torch.cat(parts, dim=-1)


WORKLOADS = (
    Workload("RoPEFwdOp", rope, torch={"rotate_half": _rope_plain, "halves": _rope_halves}),
    Workload(
        "RoPENeoxPositionIdsFwdOp",
        rope_neox_position_ids,
        torch={"rotate_half": _position_ids_plain, "halves": _position_ids_halves},
    ),
)
