"""The demo's small model, for running the installed command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The demo's tests own the model; importlib import mode gives test folders no package to import it from.
    source = Path(__file__).parents[1] / "demo" / "conftest.py"
    spec = importlib.util.spec_from_file_location("demo_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
