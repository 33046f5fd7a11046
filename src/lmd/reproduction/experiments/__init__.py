"""The experiments by name. Their modules are imported when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmd.core.checks import check_choice

if TYPE_CHECKING:
    from lmd.reproduction.experiments.base import Experiment
    from lmd.reproduction.page import Reading

__all__ = ["get", "names", "read"]

_CLASSES = {
    "photograph": "tour.PhotographTour",
    "own-class": "tour.OwnClass",
    "simplex": "plane.Simplex",
    "least-squares": "plane.LeastSquaresExperiment",
    "svm-closed-form": "linear_models.SVMClosedForm",
    "svm": "linear_models.SVMExperiment",
    "linear-classifier": "linear_models.LinearClassifierExperiment",
    "denoise": "imaging.DenoiseExperiment",
    "denoise-noise-levels": "imaging.NoiseLevelsExperiment",
    "inpaint": "imaging.InpaintExperiment",
    "safeguard": "safeguard.SafeguardExperiment",
    "consistency": "training.ConsistencyExperiment",
    "ablation": "training.AblationExperiment",
    "exact": "exact.ExactExperiment",
    "geometry": "geometry.GeometryExperiment",
    "cost": "cost.CostExperiment",
}

TOUR = ("photograph", "own-class", "simplex", "least-squares", "svm", "denoise", "inpaint")
"""The experiments of `lmd demo`: our own first, then one of each kind from the paper."""


def names() -> list[str]:
    """Return the names of all experiments: our own, then the paper's in its order."""
    return list(_CLASSES)


def get(name: str) -> Experiment:
    """An experiment by its name.

    Args:
        name: One of `names()`.
    """
    module, _, kind = _CLASSES[check_choice("experiment", name, tuple(_CLASSES))].partition(".")
    experiment: Experiment = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return experiment


def read(metrics: dict[str, Any]) -> Reading:
    """Prepare a metrics.json for the page with the experiment that it names.

    Unknown experiments, such as those of other packages, come last with default tables.

    Args:
        metrics: The contents of a metrics.json.
    """
    from lmd.reproduction.bench.report import bench_tables
    from lmd.reproduction.experiments.base import Experiment
    from lmd.reproduction.page import Reading

    name, rows, last = metrics["experiment"], metrics["rows"], len(_CLASSES)
    if name not in _CLASSES:
        return Reading(bench_tables(rows) if name == "bench" else Experiment.tables(rows), place=last)
    known, chosen = get(name), {key: metrics.get(key) for key in ("preset", "seed")}
    command = f"lmd reproduce {name} --preset {chosen['preset']} --seed {chosen['seed']}"
    return Reading(known.tables(rows), known.headline(rows) if rows else "", command, names().index(name))
