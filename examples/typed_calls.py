"""A call of every operator, with the types that an editor shows.

Run it, or hand it to a type checker: constructors and calls are typed, so a wrong keyword, a missing tensor or
a string where a number belongs is an error before anything runs.
"""

from __future__ import annotations

import torch

from tileops.attention import GQADenseFwdOp
from tileops.elementwise import (
    AddFwdOp,
    AlibiFwdOp,
    GeluAndMulFwdOp,
    GeluTanhAndMulFwdOp,
    SiluAndMulBwdOp,
    SiluAndMulFwdOp,
    SinusoidalFwdOp,
)
from tileops.gemm import GemmFwdOp, PackedWeight, pack
from tileops.moe import SharedExpertMLPFwdOp
from tileops.norm import RMSNormBwdOp, RMSNormFwdOp
from tileops.rope import LongRoPEFwdOp, RoPEFwdOp, RoPELlama31FwdOp, RoPENeoxPositionIdsFwdOp, YaRNFwdOp


def elementwise(x: torch.Tensor) -> torch.Tensor:
    halved: torch.Tensor = SiluAndMulFwdOp()(x)
    assert SiluAndMulBwdOp()(halved, x).shape == x.shape
    quarter: torch.Tensor = GeluAndMulFwdOp()(halved) + GeluTanhAndMulFwdOp()(halved)
    return AddFwdOp(alpha=0.5)(quarter, quarter)


def positions() -> torch.Tensor:
    biases: torch.Tensor = AlibiFwdOp(seq_len=8, num_heads=4)()
    assert biases.shape == (4, 8, 8)
    return SinusoidalFwdOp(8, 16, out_dtype=torch.bfloat16)()


def norm(x: torch.Tensor) -> torch.Tensor:
    plain: torch.Tensor = RMSNormFwdOp((x.shape[-1],))(x)
    grad_x, grad_weight = RMSNormBwdOp((x.shape[-1],))(plain, x)
    assert grad_weight is None
    plain = plain + grad_x
    return RMSNormFwdOp(normalized_shape=(x.shape[-1],), eps=1e-5)(plain, weight=torch.ones(x.shape[-1]))


def gemm(x: torch.Tensor) -> torch.Tensor:
    weight = torch.randn(8, x.shape[-1])
    packed: PackedWeight = pack(weight)
    result: torch.Tensor = GemmFwdOp(trans_b=True)(x, weight)
    assert packed.shape == (8, x.shape[-1])
    return result


def moe(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = SharedExpertMLPFwdOp()(x, torch.randn(24, x.shape[-1]), torch.randn(x.shape[-1], 12))
    return result


def rope(x: torch.Tensor) -> torch.Tensor:
    rotated: torch.Tensor = RoPEFwdOp(rope_layout="interleaved")(x)
    rotated = YaRNFwdOp(scale=4.0)(RoPELlama31FwdOp(scale_factor=8.0)(rotated))
    rotated = LongRoPEFwdOp(scale=32.0, rescale_factors=torch.ones(x.shape[-1] // 2))(rotated)
    positions = torch.arange(x.shape[1])
    return RoPENeoxPositionIdsFwdOp(max_position=64)(rotated[0], positions)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return GQADenseFwdOp(is_causal=True, sm_scale=0.125)(q, k, v)


def main() -> None:
    x = torch.randn(4, 16)
    heads = torch.randn(1, 6, 2, 16)
    for result in (elementwise(x), positions(), norm(x), gemm(x), moe(x), rope(heads), attention(heads, heads, heads)):
        print(tuple(result.shape), result.dtype)


if __name__ == "__main__":
    main()
