"""The command line: a thin layer that parses, calls and prints."""

import sys

try:
    from lmd.cli.program import main, program
except KeyboardInterrupt:  # as everywhere else on the command line: one line, and the exit code of shells
    sys.stderr.write("lmd: interrupted\n")
    sys.exit(130)

__all__ = ["main", "program"]
