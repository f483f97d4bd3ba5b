"""Device side: kernel interfaces and, by family, their CPU and CUDA implementations."""

from __future__ import annotations

from tileops.kernels.base import CallSpec, DeviceFacts, Kernel, KernelInterface, TensorSpec

__all__ = ["CallSpec", "DeviceFacts", "Kernel", "KernelInterface", "TensorSpec"]
