"""The command line: a thin layer that parses, calls and prints."""

from lmd.cli.program import cli, main, program

__all__ = ["cli", "main", "program"]
