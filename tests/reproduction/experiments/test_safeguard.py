"""The experiment on safeguards: every shipped solver keeps the two promises, and the figure shows what one prevents."""

import json

import pytest
import torch

from lmd.problems import TVDenoisingFamily
from lmd.reproduction import tasks
from lmd.reproduction.experiments import get, read, safeguard
from lmd.reproduction.experiments.base import reproduce
from lmd.reproduction.tables import distinct, select

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """At quick size, where there is no published checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LMD_DATA", raising=False)
        folder = reproduce(get("safeguard"), tmp_path_factory.mktemp("out"))
    return json.loads((folder / "metrics.json").read_text())


def test_every_shipped_solver_keeps_both_promises_in_every_condition(metrics):
    early = select(metrics["rows"], metric="excess_over_fallback")
    assert distinct(early, "method") == safeguard.guarded_solvers("quick")
    assert {row["iteration"] for row in early} == {20}
    assert all(0 <= row["value"] <= 0.05 for row in early)
    late = [row for row in select(metrics["rows"], metric="largest_relative_gap") if "instances" in row]
    assert len(late) == len(early) and {row["iteration"] for row in late} == {100}
    vectors = [row for row in late if row["fallback"] != "PDHG"]  # on images it takes more than 100 iterations
    assert len(vectors) >= 24 and all(0 <= row["value"] <= 1e-3 for row in vectors)
    assert all(0 <= row["value"] <= 0.1 for row in late)
    shares = select(metrics["rows"], metric="fallback_share")
    assert all(0 <= row["value"] <= 1 for row in shares) and any(0 < row["value"] < 1 for row in shares)


def test_conditions_are_shifted_features_and_noise(metrics):
    conditions = {row["condition"] for row in select(metrics["rows"], method="svm-pair-10", metric="fallback_share")}
    assert conditions == {"held out", "shifted features", "doubled features", "features with 20% noise"}
    noisy = tasks.get("denoise").conditions(TVDenoisingFamily(torch.rand(2, 1, 8, 8)))
    assert {name: family.noise for name, family in noisy.items()} == {
        f"{percent}% noise": (percent / 100, percent / 100) for percent in (1, 5, 10, 20)
    }


def test_the_figure_has_a_curve_that_rises_and_one_that_does_not(metrics):
    rows = select(metrics["rows"], metric="largest_relative_gap", solver="svm-published-10")
    curves = {method: [row["value"] for row in select(rows, method=method)] for method in ("alone", "guarded")}
    assert len(curves["alone"]) == len(curves["guarded"]) == 31
    assert all(after <= before for before, after in zip(curves["guarded"], curves["guarded"][1:], strict=False))
    assert any(after > before for before, after in zip(curves["alone"], curves["alone"][1:], strict=False))
    assert [figure["file"] for figure in metrics["figures"]] == ["figures/safeguard.png"]
    assert metrics["facts"]["checkpoints"] == "none beside LMD_DATA"


def test_the_table_has_a_line_for_each_solver_and_condition(metrics):
    (table,) = read(metrics).tables
    assert table.title == "Safeguarded, the worst instance"
    assert len(table.lines) == len(select(metrics["rows"], metric="excess_over_fallback"))
    assert table.columns[-1] == "relative gap at 100"


def test_published_checkpoints_are_found_beside_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("LMD_DATA", str(tmp_path / "data"))
    assert safeguard.find_checkpoints() == []
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "inpainting_780").write_bytes(b"")
    assert [path.name for path in safeguard.find_checkpoints()] == ["inpainting_780"]
