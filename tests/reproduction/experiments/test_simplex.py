"""Figure 1 shows what the paper says it shows."""

from pathlib import Path

import pytest

from lmd.core.files import read_json
from lmd.errors import InputError
from lmd.reproduction.experiments.base import MULTIPLIERS, Session, reproduce
from lmd.reproduction.experiments.plane import Simplex
from lmd.reproduction.tables import best, curve, select


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reproduce(Simplex(), tmp_path_factory.mktemp("out"), "quick")


@pytest.fixture(scope="module")
def metrics(folder: Path):
    return read_json(folder / "metrics.json")


def at(metrics, **wanted):
    found = best(select(metrics["rows"], metric="loss", **wanted))
    assert found is not None
    return found["value"]


def test_every_row_is_there(metrics) -> None:
    for objective in ("kl", "least-squares"):
        for method in ("gd", "md"):
            for multiplier in MULTIPLIERS:
                own = select(metrics["rows"], objective=objective, method=method, multiplier=multiplier)
                assert curve(own, "loss")[0] == list(range(51))
                assert curve(own, "seconds")[0] == list(range(51))


def test_entropic_mirror_descent_fits_kl_and_not_least_squares(metrics) -> None:
    fast = at(metrics, objective="kl", method="md", multiplier=4.0, iteration=50)
    assert fast <= 1e-12
    assert fast * 1e4 <= at(metrics, objective="kl", method="gd", iteration=50)
    least_squares = {m: at(metrics, objective="least-squares", method=m, iteration=50) for m in ("gd", "md")}
    assert least_squares["md"] > least_squares["gd"]


def test_convergence_on_kl_is_linear_at_the_predicted_rate(metrics) -> None:
    # log x_{k+1} = (1 - t) log x_k + t log y + constant, and KL is quadratic in log x - log y near the minimum.
    _, losses = curve(select(metrics["rows"], objective="kl", method="md", multiplier=4.0), "loss")
    assert losses[40] / losses[39] == pytest.approx(0.6**2, rel=1e-2)


def test_the_figure_is_a_picture(metrics, folder: Path) -> None:
    assert (folder / "figures" / "figure-1-simplex.png").stat().st_size > 20_000
    assert metrics["facts"]["dimension"] == 3


def test_a_failing_experiment_leaves_the_old_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rows = (folder / "metrics.json").read_bytes(), []

    def broken(session: Session) -> None:
        rows.extend(session.rows)
        raise RuntimeError("in the middle")

    monkeypatch.setattr("lmd.reproduction.experiments.plane.draw_simplex", broken)
    with pytest.raises(RuntimeError, match="in the middle"):
        reproduce(Simplex(), folder.parent, "quick", seed=1)
    assert (folder / "metrics.json").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["simplex"]
    losses = [each["value"] for each in select(rows, metric="loss")]
    assert losses != [each["value"] for each in select(read_json(folder / "metrics.json")["rows"], metric="loss")]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="preset: got 'huge'"):
        reproduce(Simplex(), tmp_path, "huge")
    with pytest.raises(InputError, match="seed: got -1"):
        reproduce(Simplex(), tmp_path, "quick", seed=-1)
