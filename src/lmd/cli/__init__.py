"""The command line: a thin layer that parses, calls and prints."""

import sys

try:
    from lmd.cli.program import main, program
except KeyboardInterrupt:  # Ctrl-C during the import: print one line and use the exit code of shells
    sys.stderr.write("lmd: interrupted\n")
    sys.exit(130)

__all__ = ["main", "program"]
