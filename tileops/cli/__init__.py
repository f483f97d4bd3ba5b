"""The `tileops` command: one module a command, tables for people, ``--json`` for programs."""
