"""Certificates, promises, safeguards and certified reference optima; theorems and proofs: docs/guarantees.md."""

from lmd.guarantees.certify import certify
from lmd.guarantees.promises import Monitor, Promise, promise
from lmd.guarantees.reference import OptimumCache, minimiser, minimum, optimum
from lmd.guarantees.safeguard import DescentSafeguard, Safeguard, guard

__all__ = [
    "DescentSafeguard",
    "Monitor",
    "OptimumCache",
    "Promise",
    "Safeguard",
    "certify",
    "guard",
    "minimiser",
    "minimum",
    "optimum",
    "promise",
]
