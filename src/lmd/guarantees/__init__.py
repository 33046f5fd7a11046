"""Certificates that hold and safeguards that work, written over the solver interface; proofs: docs/guarantees.md."""

from lmd.guarantees.certify import Watch, best_of, certify, run
from lmd.guarantees.comparison import Comparison, compare
from lmd.guarantees.descent import DescentSafeguard
from lmd.guarantees.diagnosis import Diagnosis, Finding, diagnose
from lmd.guarantees.divergence import divergence_bound
from lmd.guarantees.optimum import Optimum, OptimumCache
from lmd.guarantees.promise import Drift, Monitor, Promise, least_share, promise, runs_needed
from lmd.guarantees.record import Record
from lmd.guarantees.reference import minimiser, minimum, optimum, smoothest_minimiser
from lmd.guarantees.safeguard import Safeguard, default_fallback, guard
from lmd.guarantees.theorems import (
    duality_certificate,
    regret_certificate,
    relative_certificate,
    subgradient_certificate,
)
from lmd.solvers.certificate import Certificate, Constant

__all__ = [
    "Certificate",
    "Comparison",
    "Constant",
    "DescentSafeguard",
    "Diagnosis",
    "Drift",
    "Finding",
    "Monitor",
    "Optimum",
    "OptimumCache",
    "Promise",
    "Record",
    "Safeguard",
    "Watch",
    "best_of",
    "certify",
    "compare",
    "default_fallback",
    "diagnose",
    "divergence_bound",
    "duality_certificate",
    "guard",
    "least_share",
    "minimiser",
    "minimum",
    "optimum",
    "promise",
    "regret_certificate",
    "relative_certificate",
    "run",
    "runs_needed",
    "smoothest_minimiser",
    "subgradient_certificate",
]
