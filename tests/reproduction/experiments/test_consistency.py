"""Figures 12 and 13 at quick size show the trade-off that the paper describes."""

import json

import numpy as np
import pytest

from lmd.core.files import read_json
from lmd.reproduction import experiments
from lmd.reproduction.experiments.base import reproduce
from lmd.reproduction.experiments.training import CONSISTENCY_SETTINGS, PROBLEMS, growth_epochs, ingredients
from lmd.reproduction.tables import curve, select
from lmd.solvers import CorrectedMirrorDescent
from lmd.training.settings import TrainingSettings

EPOCHS = {"svm": 80, "inpaint": 46}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(experiments.get("consistency"), tmp_path_factory.mktemp("out"), "quick")
    assert (folder / "figures" / "figures-12-13-consistency.png").is_file()
    return read_json(folder / "metrics.json")


def values(metrics, problem: str, metric: str) -> list[float]:
    return curve(select(metrics["rows"], problem=problem), metric)[1]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_epoch_is_there(metrics, problem: str) -> None:
    for part in ("value", "inconsistency"):
        rows = select(metrics["rows"], problem=problem)
        assert curve(rows, f"training_{part}")[0] == list(range(1, EPOCHS[problem] + 1))
        assert curve(rows, f"held_out_{part}")[0] == list(range(EPOCHS[problem] + 1))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_weight_grows_where_the_figure_says_so(metrics, problem: str) -> None:
    epochs, weights = curve(select(metrics["rows"], problem=problem), "consistency_weight")
    # The weight of the row of epoch k is that of the update that ended it, so growth at epoch k shows in row k + 1.
    grew = [epoch - 1 for epoch, before, after in zip(epochs[1:], weights, weights[1:], strict=False) if after > before]
    assert grew == metrics["facts"][f"{problem} s grew at epochs"]
    assert len(grew) > 15


@pytest.mark.parametrize("problem", PROBLEMS)
def test_consistency_is_bought_with_loss(metrics, problem: str) -> None:
    loss, inconsistency = values(metrics, problem, "held_out_value"), values(metrics, problem, "held_out_inconsistency")
    lowest = loss.index(min(loss))
    assert loss[lowest] < 0.8 * loss[0]
    assert 0 < lowest < len(loss) - 1
    assert np.mean(loss[-5:]) > 1.03 * loss[lowest]
    assert np.mean(inconsistency[-5:]) < 0.5 * inconsistency[lowest]


def test_the_papers_algorithm_is_what_is_trained() -> None:
    for problem in PROBLEMS:
        solver, _, settings = ingredients(problem, "quick", 0)
        assert not isinstance(solver, CorrectedMirrorDescent)
        assert settings["schedule"] == "constant"


def test_the_paper_preset_has_the_papers_growth() -> None:
    for problem, growths in (("svm", 199), ("inpaint", 21)):
        settings = TrainingSettings.from_arguments(CONSISTENCY_SETTINGS[problem]["paper"])
        assert settings.consistency_growth == 1.05
        assert settings.consistency_weight == 1.0
        assert growth_epochs(settings) == [50 * k for k in range(1, growths + 1)]


def test_brought_images_take_the_place_of_the_held_out_ones(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"inpaint": {"quick": {**CONSISTENCY_SETTINGS["inpaint"]["quick"], "updates": 10}}}
    monkeypatch.setattr("lmd.reproduction.experiments.training.CONSISTENCY_SETTINGS", short)
    monkeypatch.setattr("lmd.reproduction.experiments.training.PROBLEMS", {"inpaint": "inpainting"})
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 28), np.uint8)
    np.savez(tmp_path / "mine.npz", images=images)
    folder = reproduce(experiments.get("consistency"), tmp_path / "out", "quick", images=tmp_path / "mine.npz")
    facts = json.loads((folder / "metrics.json").read_text())["facts"]
    assert facts["data"] == "2 test images of 20 x 20 from mine"
