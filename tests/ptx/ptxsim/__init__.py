"""An interpreter for the PTX of our kernels: it runs them without a GPU and refuses what a GPU would let
pass.

    memory = GlobalMemory()
    x = memory.place(np.ones(100, np.float32))
    y = memory.place(np.zeros(100, np.float32), writable=True)
    launch(ptx, memory, grid=1, block=128, args=[x, y, 100])
    memory.fetch(y, (100,), (4,), np.float32)

What it cannot tell: speed, the last bits of the approximate instructions (`forms.Form.ulps`), and memory
ordering between threads beyond barriers. Its reading of the ISA is checked on hardware by
`scripts/device_check.py`.
"""

from __future__ import annotations

from tests.ptx.ptxsim.machine import Machine, launch
from tests.ptx.ptxsim.memory import GlobalMemory
from tests.ptx.ptxsim.parser import Program, parse
from tests.ptx.ptxsim.types import PtxError, SimError

__all__ = ["GlobalMemory", "Machine", "Program", "PtxError", "SimError", "launch", "parse"]
