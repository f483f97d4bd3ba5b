"""CPU side of the JIT: compile target, launch wrapper, loader and parallel launch."""
