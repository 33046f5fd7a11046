"""Figure 14 at quick size: every variant is there, and differs in the one thing that its name says."""

import math

import pytest
import torch

from lmd.core.files import read_json
from lmd.mirrors import Euclidean
from lmd.reproduction import experiments
from lmd.reproduction.experiments.base import reproduce
from lmd.reproduction.experiments.training import ABLATION_METHODS, untrained
from lmd.reproduction.tables import curve, select
from lmd.solvers import CorrectedMirrorDescent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(experiments.get("ablation"), tmp_path_factory.mktemp("out"), "quick")
    assert (folder / "figures" / "figure-14-ablation.png").is_file()
    return read_json(folder / "metrics.json")


def values(metrics, method: str, metric: str) -> list[float]:
    iterations, found = curve(select(metrics["rows"], method=method), metric)
    assert iterations == list(range(21)), (method, metric)
    return found


def test_every_row_is_there(metrics) -> None:
    for method in ABLATION_METHODS:
        for metric in ("loss", "relative_gap", "seconds"):
            assert all(math.isfinite(value) for value in values(metrics, method, metric))
        if method != "lgd":
            assert min(values(metrics, method, "inconsistency")) > 0
    assert select(metrics["rows"], method="lgd", metric="inconsistency") == []


def test_no_method_is_below_the_certified_minimum(metrics) -> None:
    gaps = [value for method in ABLATION_METHODS for value in values(metrics, method, "relative_gap")]
    assert min(gaps) > -1e-5


def test_without_consistency_the_maps_are_no_inverses_and_the_loss_rises_again(metrics) -> None:
    loose, kept = (values(metrics, f"lmd-{name}", "inconsistency") for name in ("no-consistency", "adaptive"))
    assert loose[10] > 1.5 * kept[10]
    loss = values(metrics, "lmd-no-consistency", "loss")
    assert loss[20] > 1.1 * min(loss)


def test_correction_stops_the_rise(metrics) -> None:
    loss = values(metrics, "lmd-corrected", "loss")
    assert loss[20] < 1.01 * loss[10]
    assert loss[20] < values(metrics, "lmd-no-consistency", "loss")[20]


def test_two_trained_iterations_are_too_few(metrics) -> None:
    assert values(metrics, "lmd-two-iterations", "loss")[10] > values(metrics, "lmd-adaptive", "loss")[10]


def test_a_variant_differs_in_one_thing() -> None:
    solvers = {method: untrained(method, "quick", 0) for method in ABLATION_METHODS}
    assert {method: solver.horizon for method, solver in solvers.items()} == {
        "lmd-adaptive": 10,
        "lmd-two-iterations": 2,
        "lmd-no-consistency": 10,
        "lgd": 10,
        "lmd-corrected": 10,
    }
    assert isinstance(solvers["lgd"].mirror, Euclidean)
    assert isinstance(solvers["lmd-corrected"], CorrectedMirrorDescent)
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    reference = solvers["lmd-adaptive"].mirror
    for method in ("lmd-two-iterations", "lmd-no-consistency", "lmd-corrected"):
        assert torch.equal(solvers[method].mirror.to_dual(x), reference.to_dual(x))
    # The identity and the pair move by the same amount: their steps over their scales are the same.
    with torch.no_grad():
        own, others = (float(solvers[method].steps(0)) for method in ("lgd", "lmd-adaptive"))
    assert own == pytest.approx(others / reference.scale)
