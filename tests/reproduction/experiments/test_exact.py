"""The experiments about exact mirrors at quick size: what they claim is in their rows."""

import pytest

from lmd.core.files import read_json
from lmd.reproduction import experiments
from lmd.reproduction.experiments.base import reproduce
from lmd.reproduction.tables import curve, select

pytestmark = pytest.mark.slow


def rows_of(name: str, folder):
    out = reproduce(experiments.get(name), folder, "quick")
    assert (out / "figures" / f"{name}.png").is_file()
    metrics = read_json(out / "metrics.json")
    assert experiments.read(metrics).tables
    return metrics["rows"]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory):
    return rows_of("exact", tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("problem", ["denoise", "inpaint"])
def test_exact_mirrors_are_ahead_of_the_pair_on_images_and_go_on(exact, problem: str) -> None:
    """On two crops of 48 x 48; numbers on larger images are in docs/geometry.md."""
    own = select(exact, problem=problem)
    decibels = {
        method: dict(zip(*curve(select(own, method=method), "psnr"), strict=True))[10]
        for method in ("exact", "pair", "published")
    }
    assert decibels["exact"] > 42 and decibels["exact"] > decibels["pair"] + 4
    assert decibels["pair"] > decibels["published"] + 4
    iterations, gaps = curve(select(own, method="exact"), "relative_gap_worst")
    by_iteration = dict(zip(iterations, gaps, strict=True))
    assert by_iteration[30] < by_iteration[10] < by_iteration[5]


@pytest.mark.parametrize("problem", ["least-squares", "svm", "linear-classifier", "denoise", "inpaint"])
def test_nothing_diverges_and_all_fall(exact, problem: str) -> None:
    own = select(exact, problem=problem, method="exact")
    assert curve(own, "diverged_share")[1] == [0.0]
    assert curve(own, "share below iteration 15")[1] == [1.0]


def test_the_geometry_is_that_of_the_objective(tmp_path) -> None:
    rows = rows_of("geometry", tmp_path)
    (ratio,) = [row["value"] for row in select(rows, method="exact", metric="off-diagonal over diagonal")]
    assert ratio == pytest.approx(0.8, abs=0.01)
    slopes = select(rows, problem="denoise", metric="slope", iteration=5)
    for frequency in {row["frequency"] for row in slopes if row["frequency"] > 0.2}:
        learned, truth = (select(slopes, method=name, frequency=frequency)[0]["value"] for name in ("exact", "truth"))
        assert 0.5 < learned / truth < 2  # half way through the slopes are the diagonal of the Hessian
