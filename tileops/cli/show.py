"""`tileops show OP`: one operator's contract, kernels and cases."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, output, print_json, size, table, usage_error


def command(
    op: Annotated[str, typer.Argument(help="Name of the operator.")],
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            help='Explain which kernel a call takes: a case id, or "x=bf16[4,4096] normalized_shape=(4096,)".',
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where the call runs: cpu, or an architecture such as sm_90.")
    ] = "cpu",
    as_json: JsonFlag = False,
) -> None:
    """Show an operator: signature, kernels and workload cases with their cost."""
    from tileops.manifest import workload

    entry = catalogue.find_entry(op)
    if device != "cpu" and not device.startswith("sm_"):
        raise usage_error(f"no device {device!r}; there are cpu and architectures such as sm_90")
    if call is not None:
        _explain(entry, call, device, as_json)
        return
    cls = catalogue.op_class(entry)
    signature = entry.signature
    cases: list[dict[str, Any]] = []
    for case in workload.cases(entry):
        flops, nbytes = case.roofline()
        cases.append({"id": case.case_id, "flops": flops, "bytes": nbytes})
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


def _explain(entry: Any, text: str, device: str, as_json: bool) -> None:
    """Prints what would become of a call."""
    from tileops.ops import explanation
    from tileops.ops.planned import device_for

    cls = catalogue.op_class(entry)
    if cls is None:
        raise usage_error(f"{entry.name} is spec-only: it has no kernels yet")
    arch = None if device == "cpu" else device
    found = explanation.explain(cls, explanation.parse_call(cls, text), device_for(arch))
    if as_json:
        print_json(_as_plain(found))
        return
    console = output()

    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    line(found.construction, "bold")
    shown = ", ".join(f"{name}: {dtype}{list(shape)}" for name, dtype, shape in found.outputs)
    line(f"returns {shown}")
    if found.flops is not None and found.bytes is not None:
        line(f"costs {found.flops / 1e9:.3g} GFLOP and {size(found.bytes)}")
    line(f"target {found.target}" + (f": {found.note}" if found.note else ""))
    for site in found.sites:
        line(f"\n{site.name}: {site.call}")
        rows = [(f"  {verdict.kernel.__name__}", verdict.outcome, verdict.reason) for verdict in site.verdicts]
        table("kernel", "verdict", "reason", rows=rows)
        if site.chosen is None:
            line("the call fails: exactly one kernel must be chosen", "red")
        if site.config:
            config = ", ".join(f"{name}={value}" for name, value in site.config.items())
            line(f"{site.config_source} config: {config}")
        for program in site.programs:
            line(f"compiles {program.factory} ({', '.join(f'{name}={value}' for name, value in program.config)})")


def _as_plain(found: Any) -> dict[str, Any]:
    return {
        **{name: value for name, value in vars(found).items() if name not in ("sites", "outputs")},
        "outputs": {name: {"dtype": dtype, "shape": list(shape)} for name, dtype, shape in found.outputs},
        "sites": [
            {
                "site": site.name,
                "call": site.call,
                "chosen": site.chosen,
                "config": None if site.config is None else dict(site.config),
                "config_source": site.config_source,
                "programs": [{"factory": item.factory, "config": dict(item.config)} for item in site.programs],
                "kernels": [
                    {"kernel": verdict.kernel.__name__, "verdict": verdict.outcome, "reason": verdict.reason}
                    for verdict in site.verdicts
                ],
            }
            for site in found.sites
        ],
    }
