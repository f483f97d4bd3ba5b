"""Property tests here run on loaded machines: neither an example nor drawing it has a deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("manifest", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manifest")
