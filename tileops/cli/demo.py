"""`tileops demo`: a language model on our operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tileops.cli.console import JsonFlag, errors, output, print_json, usage_error

_PROMPT = "What is the capital of France, and what is it known for?"


def command(
    prompt: Annotated[str, typer.Option("--prompt", help="What to ask; the chat template is applied.")] = _PROMPT,
    dtype: Annotated[str, typer.Option("--dtype", help="bfloat16, float32 or float16.")] = "bfloat16",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer.")] = 64,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="GGUF file of SmolLM2-135M-Instruct (default: found or fetched)."),
    ] = None,
    against: Annotated[
        str, typer.Option("--against", help="Further PyTorch baselines: packed, freezing (comma-separated).")
    ] = "",
    compare: Annotated[bool, typer.Option(help="Measure the PyTorch reference too.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Let SmolLM2-135M-Instruct answer a prompt, beside the same model in plain PyTorch."""
    from tileops.workloads import demo

    if dtype not in demo.DTYPES:
        raise usage_error(f"--dtype {dtype!r}: expected one of {', '.join(demo.DTYPES)}")
    baselines = [name.strip() for name in against.split(",") if name.strip()]
    unknown = [name for name in baselines if name not in demo.BASELINES]
    if unknown:
        raise usage_error(f"--against {unknown[0]!r}: expected one of {', '.join(demo.BASELINES)}")
    result = demo.run(
        prompt,
        dtype=dtype,
        max_tokens=max_tokens,
        model=None if model is None else str(model),
        against=baselines,
        compare=compare,
        console=errors() if as_json else output(),
    )
    if as_json:
        print_json(result.to_dict())
