"""The device that tests, benchmarks and the demo run on: one place decides, nobody asks torch.cuda."""

from __future__ import annotations

import torch

_chosen: torch.device | None = None


def set_run_device(device: str | torch.device | None) -> None:
    """Chooses the device for this process (``--tileops-device``); None restores the default.

    Raises:
        ValueError: torch does not know such a device.
    """
    global _chosen
    if device is None:
        _chosen = None
        return
    try:
        _chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r}: {error}; use cpu, cuda or cuda:<index>") from None


def run_device() -> torch.device:
    """The chosen device; by default the current CUDA device where there is one, else the CPU."""
    if _chosen is not None:
        return _chosen
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run_device_available() -> bool:
    """Whether `run_device()` can run anything in this process."""
    device = run_device()
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    try:
        torch.empty(1, device=device)
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ):  # what torch raises differs from device to device
        return False
    return True
