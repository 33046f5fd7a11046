"""Certificates, promises, safeguards and certified reference optima; theorems and proofs: docs/guarantees.md."""

from lmd.guarantees.certify import Watch, certify, run
from lmd.guarantees.descent import DescentSafeguard
from lmd.guarantees.diagnosis import Diagnosis, diagnose
from lmd.guarantees.optimum import Optimum, OptimumCache
from lmd.guarantees.promises import Drift, Monitor, Promise, promise
from lmd.guarantees.reference import minimiser, minimum, optimum, smoothest_minimiser
from lmd.guarantees.safeguard import Safeguard, default_fallback, guard

__all__ = [
    "DescentSafeguard",
    "Diagnosis",
    "Drift",
    "Monitor",
    "Optimum",
    "OptimumCache",
    "Promise",
    "Safeguard",
    "Watch",
    "certify",
    "default_fallback",
    "diagnose",
    "guard",
    "minimiser",
    "minimum",
    "optimum",
    "promise",
    "run",
    "smoothest_minimiser",
]
