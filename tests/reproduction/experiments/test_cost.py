"""Table 3 at quick size: every N is measured, memory grows where it should, and what does not fit is left out."""

import functools
import os

import numpy as np
import pytest
import torch

from lmd.core.files import read_json
from lmd.errors import FileError, LmdError
from lmd.reproduction import experiments
from lmd.reproduction.experiments import cost
from lmd.reproduction.experiments.base import Session, reproduce
from lmd.reproduction.experiments.cost import SIZES, CostExperiment, expected_peak, fresh_process, job, peak_memory
from lmd.reproduction.tables import curve, select

METRICS = ("seconds", "gigabytes", "work_gigabytes")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory):
    folder = reproduce(experiments.get("cost"), tmp_path_factory.mktemp("out"), "quick")
    assert (folder / "figures" / "table-3-cost.png").is_file()
    return read_json(folder / "metrics.json")


def test_every_number_of_the_table_is_there(metrics) -> None:
    for method, work in (("lmd", "solve"), ("lmd", "train"), ("lmd-recompute", "train")):
        for metric in METRICS:
            iterations, values = curve(select(metrics["rows"], method=method), f"{work}_{metric}")
            assert iterations == [2, 5, 10, 20, 50]
            assert min(values) > 0


def test_training_memory_grows_with_the_iterations_and_solving_memory_does_not(metrics) -> None:
    def memory(method: str, work: str) -> list[float]:
        return curve(select(metrics["rows"], method=method), f"{work}_work_gigabytes")[1]

    stored, recomputed, solving = memory("lmd", "train"), memory("lmd-recompute", "train"), memory("lmd", "solve")
    assert stored[-1] > 2 * stored[0]
    assert stored[-1] > 1.2 * recomputed[-1]
    assert solving[-1] < 1.2 * solving[0]


def test_the_table_has_a_line_for_each_number_of_iterations(metrics) -> None:
    (table,) = experiments.read(metrics).tables
    assert [line[0] for line in table.lines] == ["2", "5", "10", "20", "50"]
    assert len(table.columns) == 7


def test_peak_memory_is_that_of_the_work_alone() -> None:
    before = np.ones(300 * 2**20, dtype=np.uint8)  # a peak of this process that a fresh one knows nothing of
    assert before.sum() == before.size
    found = fresh_process(peak_memory, functools.partial(np.ones, 100 * 2**20, dtype=np.uint8))
    assert 95 < found["work"] < 130
    assert found["peak"] > found["work"]


def test_a_process_that_dies_is_one_clear_line() -> None:
    with pytest.raises(LmdError, match=r"_exit\(9,\) ended without an answer"):
        fresh_process(os._exit, 9)


def test_what_will_not_fit_is_left_out(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expected_peak({2: 100.0}, 5) == 0.0
    assert expected_peak({2: 100.0, 5: 400.0}, 10) == 900.0
    monkeypatch.setattr(cost, "available_memory", lambda: 2**20)
    session = Session("cost", "quick", 0, tmp_path)
    found = cost._measure(session, "train", 50, SIZES["quick"], np.zeros((2, 3, 16, 16)), expected=2.0)
    assert all(value != value for value in found.values())
    assert "left out" in (tmp_path / "run.log.jsonl").read_text()


def test_a_training_step_changes_the_weights_and_a_solve_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    pair = cost.ConvPair.published

    def published(**options):
        made.append(pair(**options))
        return made[-1]

    monkeypatch.setattr(cost.ConvPair, "published", published)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    for work in cost.WORK:
        function = job(work, 2, SIZES["quick"], images)
        before = made[-1].forward_net.hidden.clone()
        function()
        assert bool((made[-1].forward_net.hidden == before).all()) == (work == "solve")


def test_images_that_are_too_small_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "small.npz", images=np.zeros((2, 3, 8, 8), np.uint8))
    with pytest.raises(FileError, match="at least 16 x 16"):
        reproduce(CostExperiment(), tmp_path / "out", "quick", images=tmp_path / "small.npz")
