"""The experiments by name. Each lives in a file of its own that is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmd.core.checks import check_choice

if TYPE_CHECKING:
    from lmd.reproduction.experiments.base import Experiment
    from lmd.reproduction.page import Reading

__all__ = ["TOUR", "get", "names", "read"]

_PLACES = {
    "photograph": ("lmd.reproduction.experiments.photograph", "PhotographTour"),
    "own-class": ("lmd.reproduction.experiments.own_class", "OwnClass"),
    "simplex": ("lmd.reproduction.experiments.simplex", "Simplex"),
    "least-squares": ("lmd.reproduction.experiments.least_squares", "LeastSquaresExperiment"),
    "svm-closed-form": ("lmd.reproduction.experiments.svm_closed_form", "SVMClosedForm"),
    "svm": ("lmd.reproduction.experiments.svm", "SVMExperiment"),
    "linear-classifier": ("lmd.reproduction.experiments.linear_classifier", "LinearClassifierExperiment"),
    "denoise": ("lmd.reproduction.experiments.denoise", "DenoiseExperiment"),
    "denoise-noise-levels": ("lmd.reproduction.experiments.noise_levels", "NoiseLevelsExperiment"),
    "inpaint": ("lmd.reproduction.experiments.inpaint", "InpaintExperiment"),
    "safeguard": ("lmd.reproduction.experiments.safeguard", "SafeguardExperiment"),
    "consistency": ("lmd.reproduction.experiments.consistency", "ConsistencyExperiment"),
    "ablation": ("lmd.reproduction.experiments.ablation", "AblationExperiment"),
    "exact": ("lmd.reproduction.experiments.exact", "ExactExperiment"),
    "geometry": ("lmd.reproduction.experiments.geometry", "GeometryExperiment"),
    "cost": ("lmd.reproduction.experiments.cost", "CostExperiment"),
}

TOUR = ("photograph", "own-class", "simplex", "least-squares", "svm", "denoise", "inpaint")
"""What `lmd demo` shows: what is best first, then one experiment of the paper of each kind."""


def names() -> list[str]:
    """Every experiment: what is best, then the paper's in its order."""
    return list(_PLACES)


def get(name: str) -> Experiment:
    """An experiment by its name.

    Args:
        name: One of `names()`.
    """
    module, kind = _PLACES[check_choice("experiment", name, tuple(_PLACES))]
    experiment: Experiment = getattr(importlib.import_module(module), kind)()
    return experiment


def read(metrics: dict[str, Any]) -> Reading:
    """What a metrics.json says, as the experiment that it names reads its rows.

    One that is not known here may have been somebody's own: it is shown as any experiment is, after all others.

    Args:
        metrics: The contents of a metrics.json.
    """
    from lmd.reproduction.bench.report import bench_tables
    from lmd.reproduction.experiments.base import Experiment
    from lmd.reproduction.page import Reading

    name, rows, last = metrics["experiment"], metrics["rows"], len(_PLACES)
    if name not in _PLACES:
        return Reading(bench_tables(rows) if name == "bench" else Experiment.tables(rows), place=last)
    known, chosen = get(name), {key: metrics.get(key) for key in ("preset", "seed")}
    command = f"lmd reproduce {name} --preset {chosen['preset']} --seed {chosen['seed']}"
    return Reading(known.tables(rows), known.headline(rows) if rows else "", command, names().index(name))
