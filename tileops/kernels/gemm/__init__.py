"""Matrix multiplication kernels."""
