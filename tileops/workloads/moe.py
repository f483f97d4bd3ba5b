"""References and baselines of the operators of mixtures of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def shared_expert_mlp(hidden_states: torch.Tensor, w_gate_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    """``(silu(g) * u) @ w_down^T`` with ``g, u = hidden_states @ w_gate_up^T`` in float64."""
    return _linears(hidden_states.double(), w_gate_up.double(), w_down.double())


def _linears(hidden_states: torch.Tensor, w_gate_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(hidden_states, w_gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, w_down)


WORKLOADS = (
    Workload("SharedExpertMLPFwdOp", shared_expert_mlp, torch={"linear": _linears}, cold=("w_gate_up", "w_down")),
)
