"""Property tests here run on loaded machines: no example has a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("manifest", derandomize=True, deadline=None)
settings.load_profile("manifest")
