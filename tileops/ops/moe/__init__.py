"""Operators of mixtures of experts."""

from __future__ import annotations

from tileops.ops.moe.shared_expert_mlp import SharedExpertMLPFwdOp

__all__ = ["SharedExpertMLPFwdOp"]
