"""Which trained solver to use for a problem and a tolerance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

Choices = tuple[tuple[float, str], ...]
"""Pairs of a smallest tolerance and the name of a solver, best first."""

_SADDLE: Choices = ((0.02, "models-saddle-40"), (0.0, "models-saddle-120"))
_SECOND_ORDER: Choices = ((0.02, "models-second-40"), (0.0, "models-second-120"))
_COUNTS: Choices = ((0.0, "models-counts-40"),)
_ABSOLUTE: Choices = ((0.0, "models-absolute-40"),)

_MISFITS = {
    "Squares": _SADDLE,
    "KullbackLeibler": _COUNTS,
    "kept KullbackLeibler": _COUNTS,
    "Absolute": _ABSOLUTE,
}
_FORWARD = (("KullbackLeibler", "Blur"), ("squares", "Blur"), ("squares", "ParallelBeam"))
_NORMS = ("l1", "L1", "lengths", "GroupNorm", "Huber")


def _table() -> Mapping[tuple[str, ...], Choices]:
    found: dict[tuple[str, ...], Choices] = {
        ("squares", "l1", "differences"): ((5e-2, "denoise-7-fast"), (0.0, "denoise-20-fast")),
        ("squares", "lengths", "differences"): ((0.0, "denoise-isotropic-10"),),
    }
    for norm, field in itertools.product(_NORMS, ("differences", "Differences")):
        found |= {(f"boxed {misfit}", norm, field): choices for misfit, choices in _MISFITS.items()}
        found |= {("Box", norm, field, *forward): _SADDLE for forward in _FORWARD}
    for norm in ("l1", "lengths", "GroupNorm"):
        found["Stacked", norm, "Slopes", norm, "Bends"] = _SECOND_ORDER
    return found


CHOICES = _table()
"""By the parts of a problem. Models with squares of all entries have a compiled loop, and need no choice."""


def trained_solvers(parts: tuple[str, ...], tolerance: float) -> list[str]:
    """Return the names of the trained solvers for problems with these parts and a tolerance, best first.

    Args:
        parts: `problem.parts`.
        tolerance: The relative gap to be proven.
    """
    return [name for smallest, name in CHOICES.get(parts, ()) if tolerance >= smallest]
