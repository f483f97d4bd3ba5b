"""`tileops show OP`: one operator's contract, kernels and cases."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, output, print_json, size, table


def command(op: Annotated[str, typer.Argument(help="Name of the operator.")], as_json: JsonFlag = False) -> None:
    """Show an operator: signature, kernels and workload cases with their cost."""
    from tileops.manifest import workload

    entry = catalogue.find_entry(op)
    cls = catalogue.op_class(entry)
    signature = entry.signature
    cases: list[dict[str, Any]] = []
    for call in workload.cases(entry):
        flops, nbytes = call.roofline()
        cases.append({"id": call.case_id, "flops": flops, "bytes": nbytes})
    facts: dict[str, Any] = {
        "op": entry.name,
        "family": entry.family,
        "status": entry.status,
        "ref_api": entry.ref_api,
        "params": {name: str(decl) for name, decl in signature.params.items()},
        "inputs": {name: str(decl) for name, decl in signature.inputs.items()},
        "outputs": {name: str(decl) for name, decl in signature.outputs.items()},
        "rules": [str(rule) for rule in signature.shape_rules],
        "kernels": {
            key: sorted(kernel.devices) for key, kernel in (cls.kernel_types.items() if cls is not None else ())
        },
        "cases": cases,
    }
    if as_json:
        print_json(facts)
        return
    console = output()
    console.print(f"tileops.{entry.family}.{entry.name}", style="bold", highlight=False)
    console.print(f"{entry.status}; follows {entry.ref_api or 'no single API'}\n", highlight=False, markup=False)
    for title in ("params", "inputs", "outputs"):
        if facts[title]:
            table(title, "", rows=[(f"  {name}", text) for name, text in facts[title].items()])
    if facts["rules"]:
        table("rules", rows=[(f"  {rule}",) for rule in facts["rules"]])
    if facts["kernels"]:
        table("kernels", "devices", rows=[(f"  {key}", ", ".join(on)) for key, on in facts["kernels"].items()])
    table(
        "cases",
        "GFLOP",
        "traffic",
        rows=[(f"  {case['id']}", f"{case['flops'] / 1e9:.3g}", size(case["bytes"])) for case in cases],
        numeric=("GFLOP", "traffic"),
    )
