"""`tileops config`: the settings in force."""

from __future__ import annotations

import os

from tileops.cli.console import JsonFlag, print_json, size, table


def command(as_json: JsonFlag = False) -> None:
    """Show every setting: its variable, its value, where that comes from, and what it means."""
    from tileops import settings

    found = [
        {
            "variable": variable,
            "value": list(value) if isinstance(value, tuple) else value,
            "source": "environment" if os.environ.get(variable) else "default",
            "meaning": meaning,
        }
        for variable, value, meaning in settings.current().describe()
    ]
    if as_json:
        print_json(found)
        return
    rows = [(item["variable"], _shown(item["value"]), item["source"], item["meaning"]) for item in found]
    table("variable", "value", "source", "meaning", rows=rows)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return os.pathsep.join(map(str, value)) or "-"
    if isinstance(value, int):  # the one number is a size
        return size(value)
    return "-" if value is None else str(value)
