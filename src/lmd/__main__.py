"""`python -m lmd` is the command `lmd`, for launchers such as `torchrun -m lmd train`."""

from lmd.cli import program

if __name__ == "__main__":
    program()
