"""Figures 4 to 7 at quick size, on the bundled digits: every row is there, and the learned solvers are ahead."""

import pytest

from lmd.core.files import read_json
from lmd.reproduction import experiments
from lmd.reproduction.experiments.base import MULTIPLIERS, reproduce
from lmd.reproduction.tables import best, curve, select

pytestmark = pytest.mark.slow

COMPARED = ("gd", "adam", "nesterov", "lmd")
ALONE = ("lbfgs", "warm-start", "lmd-adaptive", "gd-tuned", "adam-tuned", "warm-start-gd", "warm-start-lmd")


@pytest.fixture(scope="module", params=["svm", "linear-classifier"])
def metrics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(experiments.get(request.param), tmp_path_factory.mktemp("out"), "quick")
    return read_json(folder / "metrics.json")


@pytest.fixture(scope="module")
def closed_form(tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(experiments.get("svm-closed-form"), tmp_path_factory.mktemp("out"), "quick")
    return read_json(folder / "metrics.json")


def gap(metrics, method: str, iteration: int) -> float:
    found = best(select(metrics["rows"], method=method, iteration=iteration, metric="relative_gap"))
    assert found is not None
    return found["value"]


def test_every_row_is_there(metrics) -> None:
    wanted = [(method, {"multiplier": m}) for method in COMPARED for m in MULTIPLIERS]
    for method, settings in [*wanted, *((method, {}) for method in ALONE)]:
        own = select(metrics["rows"], method=method, **settings)
        for metric in ("loss", "relative_gap", "accuracy", "seconds"):
            assert curve(own, metric)[0] == list(range(101)), (method, metric)
    assert metrics["facts"]["data"] == "digits"
    assert len(metrics["figures"]) == (2 if metrics["experiment"] == "svm" else 1)


def test_the_learned_solver_is_ahead_of_gd_and_adam(metrics) -> None:
    learned = min(gap(metrics, method, 10) for method in ("lmd", "lmd-adaptive"))
    assert learned < gap(metrics, "gd", 10)
    assert learned < gap(metrics, "adam", 10)


def test_gaps_are_gaps(metrics) -> None:
    values = [row["value"] for row in select(metrics["rows"], metric="relative_gap") if row["value"] is not None]
    assert min(values) > -1e-5, "no method is below the certified minimum"
    assert 0.4 < best(select(metrics["rows"], metric="accuracy"), largest=True)["value"] <= 1  # type: ignore[index]


def test_scikit_learn_is_timed_beside_the_others(metrics) -> None:
    (row,) = select(metrics["rows"], method="scikit-learn", metric="time_over_scikit_learn")
    assert row["value"] == 1.0
    own = {"interior-learned", "warm-start-interior"} if metrics["experiment"] == "svm" else {"newton-learned"}
    assert {row["method"] for row in select(metrics["rows"], metric="seconds_to_gap_1e-2")} == own | {
        "lbfgs",
        "warm-start",
        "lmd-adaptive",
        "warm-start-lmd",
        "scikit-learn",
    }


def test_closed_form_lmd_is_ahead_and_its_eigenvalues_are_counted(closed_form) -> None:
    for method in ("lmd-quadratic-adaptive", "lmd-one-layer-adaptive"):
        assert gap(closed_form, method, 10) < min(gap(closed_form, "gd", 10), gap(closed_form, "adam", 10))
    counts = {row["level"]: row["value"] for row in select(closed_form["rows"], metric="eigenvalues_above")}
    assert set(counts) == {0.5, 1.0}
    assert counts[1.0] <= counts[0.5] <= 51
    assert len(select(closed_form["rows"], metric="matrix_eigenvalue")) == 51
    assert len(closed_form["figures"]) == 3


def test_the_papers_one_layer_start_blows_up_and_ours_does_not(closed_form) -> None:
    start = gap(closed_form, "gd", 0)
    published = max(
        row["value"] for row in select(closed_form["rows"], method="lmd-one-layer-published", metric="relative_gap")
    )
    ours = max(row["value"] for row in select(closed_form["rows"], method="lmd-one-layer", metric="relative_gap"))
    assert published > 2 * start
    assert ours <= 1.0001 * start
