"""Figures 2 and 3 show what the paper says they show."""

from itertools import pairwise

import pytest
import torch

from lmd.core.files import read_json
from lmd.mirrors import Quadratic
from lmd.reproduction import recipes
from lmd.reproduction.experiments.base import MULTIPLIERS, reproduce
from lmd.reproduction.experiments.plane import LeastSquaresExperiment, curvature_at_zero
from lmd.reproduction.tables import best, curve, distinct, select


@pytest.fixture(scope="module", params=["quick", "standard"])
def metrics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(LeastSquaresExperiment(), tmp_path_factory.mktemp("out"), request.param)
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "figure-2-quadratic.png",
        "figure-3-one-layer.png",
    }
    return read_json(folder / "metrics.json")


def loss(metrics, **wanted):
    found = best(select(metrics["rows"], metric="loss", **wanted))
    assert found is not None
    return found["value"]


def test_every_row_is_there(metrics) -> None:
    for method in ("gd", "adam", "md", "lmd-quadratic", "lmd-one-layer"):
        for multiplier in MULTIPLIERS:
            own = select(metrics["rows"], method=method, multiplier=multiplier)
            assert curve(own, "loss")[0] == list(range(51))
    for method in ("lmd-quadratic-adaptive", "lmd-one-layer-adaptive"):
        assert curve(select(metrics["rows"], method=method), "loss")[0] == list(range(51))


def test_the_learned_matrix_has_the_shape_of_the_true_one(metrics) -> None:
    (learned,) = select(metrics["rows"], method="lmd-quadratic", metric="matrix_ratio")
    (true,) = select(metrics["rows"], method="md", metric="matrix_ratio")
    assert true["value"] == pytest.approx(0.8)
    assert 0.78 <= learned["value"] <= 0.82


def test_quadratic_lmd_converges_linearly_and_far_ahead_of_gd(metrics) -> None:
    assert loss(metrics, method="lmd-quadratic-adaptive", iteration=10) <= 1e-8
    assert loss(metrics, method="lmd-quadratic", iteration=10) * 100 <= loss(metrics, method="gd", iteration=10)
    _, losses = curve(select(metrics["rows"], method="lmd-quadratic", multiplier=0.25), "loss")
    rates = [after / before for before, after in pairwise(losses[5:26])]
    assert max(rates) < 0.9
    assert max(rates) - min(rates) < 0.05


def test_the_one_layer_mirror_reports_its_clipping(metrics) -> None:
    shares = {
        row["multiplier"]: row["value"]
        for row in select(metrics["rows"], method="lmd-one-layer", metric="clipped_share")
    }
    assert set(shares) == set(MULTIPLIERS)
    assert shares[4.0] > shares[0.25]
    assert "clipped_share" not in distinct(select(metrics["rows"], method="lmd-quadratic"), "metric")


def test_gradient_descent_diverges_where_theory_says_so(metrics) -> None:
    # The largest Hessian eigenvalue is 18, so steps above 1/9 diverge: 0.2 and 0.4 do, 0.1 does not.
    shares = {row["multiplier"]: row["value"] for row in select(metrics["rows"], method="gd", metric="diverged_share")}
    assert shares == {0.25: 0.0, 0.5: 0.0, 1.0: 0.0, 2.0: 1.0, 4.0: 1.0}


def test_curvature_of_a_quadratic_is_its_matrix() -> None:
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    assert torch.allclose(curvature_at_zero(Quadratic.from_matrix(matrix)), matrix)


def test_the_shipped_solver_is_used_where_there_is_one() -> None:
    assert "ships" in recipes.origin("least-squares-quadratic-10", "standard")
    assert "training" in recipes.origin("least-squares-quadratic-10", "standard", retrain=True)
    assert "training" in recipes.origin("least-squares-quadratic-10", "quick")
