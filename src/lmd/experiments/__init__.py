"""The experiments by name. Each lives in a file of its own that is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmd.checks import check_choice

if TYPE_CHECKING:
    from lmd.experiments.base import Experiment
    from lmd.report.tables import Table

__all__ = ["TOUR", "get", "names", "tables_of"]

_PLACES = {
    "simplex": ("lmd.experiments.simplex", "Simplex"),
    "least-squares": ("lmd.experiments.least_squares", "LeastSquaresExperiment"),
    "svm-closed-form": ("lmd.experiments.svm_closed_form", "SVMClosedForm"),
    "svm": ("lmd.experiments.svm", "SVMExperiment"),
    "linear-classifier": ("lmd.experiments.linear_classifier", "LinearClassifierExperiment"),
    "denoise": ("lmd.experiments.denoise", "DenoiseExperiment"),
    "denoise-noise-levels": ("lmd.experiments.noise_levels", "NoiseLevelsExperiment"),
    "inpaint": ("lmd.experiments.inpaint", "InpaintExperiment"),
    "safeguard": ("lmd.experiments.safeguard", "SafeguardExperiment"),
    "consistency": ("lmd.experiments.consistency", "ConsistencyExperiment"),
    "ablation": ("lmd.experiments.ablation", "AblationExperiment"),
    "exact": ("lmd.experiments.exact", "ExactExperiment"),
    "geometry": ("lmd.experiments.geometry", "GeometryExperiment"),
    "cost": ("lmd.experiments.cost", "CostExperiment"),
}

TOUR = ("simplex", "least-squares", "svm", "denoise", "inpaint")
"""What `lmd demo` shows: one experiment of each kind, so that it is over before anybody tires of it."""


def names() -> list[str]:
    """Every experiment, in the order of the paper."""
    return list(_PLACES)


def get(name: str) -> Experiment:
    """An experiment by its name."""
    module, kind = _PLACES[check_choice("experiment", name, tuple(_PLACES))]
    experiment: Experiment = getattr(importlib.import_module(module), kind)()
    return experiment


def tables_of(metrics: dict[str, Any]) -> list[Table]:
    """The tables of a metrics.json, as the experiment that it names makes them of its rows.

    One that is not known here may have been somebody's own: it is shown as any experiment is.
    """
    from lmd.experiments.base import Experiment
    from lmd.experiments.bench.tables import bench_tables

    name, rows = metrics["experiment"], metrics["rows"]
    if name == "bench":
        return bench_tables(rows)
    return get(name).tables(rows) if name in _PLACES else Experiment.tables(rows)
