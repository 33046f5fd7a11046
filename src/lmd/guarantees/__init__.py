"""Certificates that hold and safeguards that work, written over the solver interface; proofs: docs/guarantees.md."""

from lmd.guarantees.certify import Watch, best_of, certify, run
from lmd.guarantees.descent import DescentSafeguard
from lmd.guarantees.diagnosis import Diagnosis, Finding, diagnose, guard, harder_families
from lmd.guarantees.divergence import divergence_bound
from lmd.guarantees.record import Record
from lmd.guarantees.safeguard import Safeguard
from lmd.guarantees.theorems import (
    duality_certificate,
    regret_certificate,
    relative_certificate,
    subgradient_certificate,
)
from lmd.solvers.certificate import Certificate, Constant

__all__ = [
    "Certificate",
    "Constant",
    "DescentSafeguard",
    "Diagnosis",
    "Finding",
    "Record",
    "Safeguard",
    "Watch",
    "best_of",
    "certify",
    "diagnose",
    "divergence_bound",
    "duality_certificate",
    "guard",
    "harder_families",
    "regret_certificate",
    "relative_certificate",
    "run",
    "subgradient_certificate",
]
