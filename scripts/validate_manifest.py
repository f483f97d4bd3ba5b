#!/usr/bin/env python
"""Checks the operator manifest: ``python scripts/validate_manifest.py [--check-op NAME] [--levels ...] [--json]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout's own manifest, installed or not

from tileops.manifest.validate import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of a pipe went away
        sys.stderr.close()
        sys.exit(0)
