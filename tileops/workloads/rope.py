"""References and baselines of the rotary position embeddings.

The baselines use tables of cosines and sines computed beforehand, as models do; only the rotation, and the
lookup by position where positions are an input, is part of a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tileops.workloads import Formulation, Workload


def inverse_frequencies(rotary_dim: int, base: float, device: torch.device | None = None) -> torch.Tensor:
    """``base ** (-2 i / rotary_dim)`` for every pair i, float64."""
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
    return base ** (-2.0 * pair / rotary_dim)


def rotation_angles(positions: torch.Tensor, rotary_dim: int, base: float) -> torch.Tensor:
    """``position * base ** (-2 i / rotary_dim)`` for every position and pair, float64 ``[..., rotary_dim /
    2]``.
    """
    return positions.double()[..., None] * inverse_frequencies(rotary_dim, base, positions.device)


def rotate(x: torch.Tensor, angles: torch.Tensor, rope_layout: str) -> torch.Tensor:
    """`x` in float64 with its pairs turned by `angles`, which broadcast to ``[..., D / 2]``."""
    wide = x.double()
    cos, sin = angles.cos(), angles.sin()
    if rope_layout == "neox":
        first, second = wide.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    first, second = wide[..., 0::2], wide[..., 1::2]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


def _in_sequence(
    x: torch.Tensor, frequencies: torch.Tensor, rope_layout: str, input_layout: str, amplitude: float = 1.0
) -> torch.Tensor:
    """Every head vector of ``[S, D]`` or ``[B, S, H, D]`` turned by its position in the sequence, in float64."""
    seq_len = x.shape[0] if input_layout == "1d" else x.shape[1]
    angles = torch.arange(seq_len, device=x.device).double()[:, None] * frequencies
    return amplitude * rotate(x, angles if input_layout == "1d" else angles[:, None, :], rope_layout)


def rope(
    x: torch.Tensor, *, rope_layout: str = "neox", input_layout: str = "1d", base: float = 10000.0
) -> torch.Tensor:
    """Every head vector turned by its position in the sequence, in float64; `x` is ``[S, D]`` or ``[B, S, H,
    D]``.
    """
    return _in_sequence(x, inverse_frequencies(x.shape[-1], base, x.device), rope_layout, input_layout)


def llama31_frequencies(
    rotary_dim: int,
    base: float,
    scale_factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Those of ``flashinfer.rope.apply_llama31_rope_pos_ids``, by wavelengths."""
    frequencies = inverse_frequencies(rotary_dim, base, device)
    wavelengths = 2.0 * math.pi / frequencies
    smooth = (original_max_position / wavelengths - low_freq_factor) / (high_freq_factor - low_freq_factor)
    between = (1.0 - smooth) * frequencies / scale_factor + smooth * frequencies
    stretched = torch.where(wavelengths > original_max_position / low_freq_factor, frequencies / scale_factor, between)
    return torch.where(wavelengths < original_max_position / high_freq_factor, frequencies, stretched)


def rope_llama31(
    x: torch.Tensor,
    *,
    rope_layout: str,
    input_layout: str,
    base: float,
    scale_factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
) -> torch.Tensor:
    """`rope` with the frequencies of Llama 3.1, in float64."""
    frequencies = llama31_frequencies(
        x.shape[-1], base, scale_factor, low_freq_factor, high_freq_factor, original_max_position, x.device
    )
    return _in_sequence(x, frequencies, rope_layout, input_layout)


def yarn_frequencies(
    rotary_dim: int,
    base: float,
    scale: float,
    original_max_position: int,
    beta_fast: float,
    beta_slow: float,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Those of vLLM's ``YaRNScalingRotaryEmbedding``: a ramp over the pairs from extrapolation to interpolation."""
    low, high = (
        rotary_dim * math.log(original_max_position / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    first, last = float(max(math.floor(low), 0)), float(min(math.ceil(high), rotary_dim - 1))
    if first == last:
        last += 0.001
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
    interpolated = ((pair - first) / (last - first)).clamp(0.0, 1.0)
    frequencies = inverse_frequencies(rotary_dim, base, device)
    return frequencies / scale * interpolated + frequencies * (1.0 - interpolated)


def yarn_amplitude(scale: float, attn_factor: float) -> float:
    """Factor of the cosines and sines of YaRN."""
    return attn_factor * (0.1 * math.log(scale) + 1.0 if scale > 1.0 else 1.0)


def yarn(
    x: torch.Tensor,
    *,
    rope_layout: str,
    input_layout: str,
    base: float,
    scale: float,
    original_max_position: int,
    beta_fast: float,
    beta_slow: float,
    attn_factor: float,
) -> torch.Tensor:
    """`rope` with the frequencies and the amplitude of YaRN, in float64."""
    frequencies = yarn_frequencies(x.shape[-1], base, scale, original_max_position, beta_fast, beta_slow, x.device)
    return _in_sequence(x, frequencies, rope_layout, input_layout, yarn_amplitude(scale, attn_factor))


def long_rope_frequencies(
    rotary_dim: int, base: float, rescale_factors: torch.Tensor | None, device: torch.device | None = None
) -> torch.Tensor:
    """Those of vLLM's ``Phi3LongRoPEScaledRotaryEmbedding``."""
    frequencies = inverse_frequencies(rotary_dim, base, device)
    if rescale_factors is None:
        return frequencies
    return 1.0 / (rescale_factors.detach().to(frequencies.device).double() / frequencies)


def long_rope_amplitude(scale: float, original_max_position: int) -> float:
    """Factor of the cosines and sines of LongRoPE."""
    return math.sqrt(1.0 + math.log(scale) / math.log(original_max_position)) if scale > 1.0 else 1.0


def long_rope(
    x: torch.Tensor,
    *,
    rope_layout: str,
    input_layout: str,
    base: float,
    scale: float,
    original_max_position: int,
    rescale_factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """`rope` with the frequencies and the amplitude of LongRoPE, in float64."""
    frequencies = long_rope_frequencies(x.shape[-1], base, rescale_factors, x.device)
    return _in_sequence(x, frequencies, rope_layout, input_layout, long_rope_amplitude(scale, original_max_position))


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


#: What decides a table of cosines and sines: frequencies as a function of the head size, amplitude, and their key.
_Frequencies = tuple[Callable[[int], torch.Tensor], float, tuple[object, ...]]

_tables: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}


def _cos_sin(
    length: int, dim: int, frequencies: _Frequencies, dtype: torch.dtype, device: torch.device, *, doubled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[length, dim / 2]``, or ``[length, dim]`` with the halves repeated."""
    of_dim, amplitude, name = frequencies
    key = (length, dim, name, dtype, str(device), doubled)
    if key not in _tables:
        angles = torch.arange(length, device=device).double()[:, None] * of_dim(dim).to(device)
        if doubled:
            angles = torch.cat((angles, angles), dim=-1)
        _tables[key] = ((amplitude * angles.cos()).to(dtype), (amplitude * angles.sin()).to(dtype))
    return _tables[key]


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _sequence_tables(
    x: torch.Tensor, input_layout: str, frequencies: _Frequencies, dtype: torch.dtype, *, doubled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    seq_len = x.shape[0] if input_layout == "1d" else x.shape[1]
    cos, sin = _cos_sin(seq_len, x.shape[-1], frequencies, dtype, x.device, doubled=doubled)
    return (cos, sin) if input_layout == "1d" else (cos[:, None, :], sin[:, None, :])


def _plainly(x: torch.Tensor, frequencies: _Frequencies, rope_layout: str, input_layout: str) -> torch.Tensor:
    """The formula of model code: ``x * cos + rotate_half(x) * sin``, or its interleaved twin."""
    if rope_layout == "neox":
        cos, sin = _sequence_tables(x, input_layout, frequencies, x.dtype, doubled=True)
        return x * cos + _rotate_half(x) * sin
    cos, sin = _sequence_tables(x, input_layout, frequencies, x.dtype, doubled=False)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


def _by_halves(x: torch.Tensor, frequencies: _Frequencies, rope_layout: str, input_layout: str) -> torch.Tensor:
    """Neox by halves; interleaved as a complex product in float32."""
    if rope_layout == "neox":
        cos, sin = _sequence_tables(x, input_layout, frequencies, x.dtype, doubled=False)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    cos, sin = _sequence_tables(x, input_layout, frequencies, torch.float32, doubled=False)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(x.dtype)


def _plain_frequencies(base: float) -> _Frequencies:
    return (lambda dim: inverse_frequencies(dim, base)), 1.0, ("plain", base)


def _llama31(base: float, **scaling: Any) -> _Frequencies:
    return (lambda dim: llama31_frequencies(dim, base, **scaling)), 1.0, ("llama31", base, *scaling.values())


def _yarn(base: float, scale: float, attn_factor: float, **ramp: Any) -> _Frequencies:
    amplitude = yarn_amplitude(scale, attn_factor)
    name = ("yarn", base, scale, attn_factor, *ramp.values())
    return (lambda dim: yarn_frequencies(dim, base, scale, **ramp)), amplitude, name


def _long_rope(
    base: float, scale: float, original_max_position: int, rescale_factors: torch.Tensor | None = None
) -> _Frequencies:
    amplitude = long_rope_amplitude(scale, original_max_position)
    # Rows draw the same factors for every head size and dtype, and a compiled baseline can compare no more than these.
    name = ("long rope", base, amplitude, None if rescale_factors is None else rescale_factors.dtype)
    return (lambda dim: long_rope_frequencies(dim, base, rescale_factors)), amplitude, name


def _formulations(frequencies: Callable[..., _Frequencies]) -> dict[str, Formulation]:
    """Both formulations of a rope whose construction parameters, but for the layouts, make its frequencies."""

    def formulated(rotation: Callable[..., torch.Tensor]) -> Formulation:
        def formulation(x: torch.Tensor, *, rope_layout: str, input_layout: str, **params: Any) -> torch.Tensor:
            return rotation(x, frequencies(**params), rope_layout, input_layout)

        return formulation

    return {"rotate_half": formulated(_plainly), "halves": formulated(_by_halves)}


def _position_ids_plain(
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    max_position: int,
) -> torch.Tensor:
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = _cos_sin(max_position, rotary_dim, _plain_frequencies(base), x.dtype, x.device, doubled=True)
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
    cos, sin = _cos_sin(max_position, rotary_dim, _plain_frequencies(base), x.dtype, x.device, doubled=False)
    cos, sin = cos[position_ids][:, None, :], sin[position_ids][:, None, :]
    first, second = x[..., :rotary_dim].chunk(2, dim=-1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    if rotary_dim < x.shape[-1]:
        parts.append(x[..., rotary_dim:])
    return torch.cat(parts, dim=-1)


WORKLOADS = (
    Workload("RoPEFwdOp", rope, torch=_formulations(_plain_frequencies)),
    Workload("RoPELlama31FwdOp", rope_llama31, torch=_formulations(_llama31)),
    Workload("YaRNFwdOp", yarn, torch=_formulations(_yarn)),
    Workload("LongRoPEFwdOp", long_rope, torch=_formulations(_long_rope)),
    Workload(
        "RoPENeoxPositionIdsFwdOp",
        rope_neox_position_ids,
        torch={"rotate_half": _position_ids_plain, "halves": _position_ids_halves},
    ),
)
