"""What the demo begins with: a photograph and a race, and a class that is learned while one waits."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lmd.reproduction import experiments
from lmd.reproduction.experiments.base import reproduce
from lmd.reproduction.experiments.tour import OwnClass, PhotographTour, write_learned
from lmd.reproduction.tables import row, select


def test_the_photograph_is_denoised_and_proven_and_the_race_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmd.reproduction.experiments.tour.SIDES", {"quick": 48})
    monkeypatch.setattr("lmd.reproduction.experiments.tour.TOLERANCES", (1e-1, 3e-2, 1e-2, 3e-3, 1e-3))
    busy = SimpleNamespace(perf_counter=lambda: 1e6 * time.perf_counter(), process_time=time.process_time)
    monkeypatch.setattr(
        "lmd.reproduction.experiments.tour.time", busy
    )  # every call seems to take a million times as long
    metrics = json.loads((reproduce(experiments.get("photograph"), tmp_path) / "metrics.json").read_text())
    answer = {found["metric"]: found["value"] for found in select(metrics["rows"], iteration="answer")}
    assert answer["psnr"] > answer["psnr_noisy"] + 3
    assert 0 < answer["grey_levels"] < 5
    gaps = {
        found["iteration"]: found["value"] for found in select(metrics["rows"], method="lmd", metric="relative_gap")
    }
    assert gaps[0] <= 1e-1 and gaps[2] <= 1e-2 and gaps[4] <= 1e-3
    assert metrics["figures"][0]["frames"] == ["with noise", "denoised"]
    reading = experiments.read(metrics)
    assert "dB after one line of code" in reading.headline and "a gap of 0.001 takes" in reading.headline
    assert reading.tables[0].lines[0][0] == "lmd"


def test_the_headline_of_the_race_names_the_next_best() -> None:
    answers = {"psnr_noisy": 22.0, "psnr": 28.0, "grey_levels": 0.4}
    rows = [row("lmd", "answer", metric, value) for metric, value in answers.items()]
    for method, seconds in (("lmd", 0.002), ("FGP", 0.004), ("PDHG", 0.03)):
        rows += [row(method, 0, "relative_gap", 1e-3), row(method, 0, "seconds", seconds)]
    assert PhotographTour.headline(rows).endswith("a gap of 0.001 takes 2 ms, and 4 ms with FGP")


def test_the_headline_of_the_class_compares_the_best_learned_with_the_best_tuned() -> None:
    rows = [
        row(name, "to gap", "milliseconds", value, gap=1e-3, learned=learned)
        for name, value, learned in (("a", 0.5, True), ("b", 0.7, True), ("ADMM", 1.4, False), ("FGP", 7.0, False))
    ]
    assert OwnClass.headline(rows).endswith("in 0.5 ms, with ADMM, tuned, 1.4 ms")
    assert OwnClass.tables(rows)[0].lines[-1] == ("FGP", "7")


CARD = {
    "winner": "mine",
    "promised": "most of them",
    "family": "my <family>",
    "minutes": 5.0,
    "target": 1e-3,
    "batch": 100,
    "seed": 0,
    "rows": [
        {
            "method": "mine",
            "learned": True,
            "milliseconds": {"0.001": 0.5},
            "gaps": [0.3, 1e-4],
            "speed": {"start": 0.1, "each": 0.4},
        },
        {"method": "ADMM", "learned": False, "milliseconds": {}, "gaps": [1.0], "speed": {"start": 0.1, "each": 0.4}},
        {"method": "OSQP", "learned": False, "milliseconds": {}},
    ],
}


def test_a_class_is_learned_and_shown(threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: object, **__: object) -> SimpleNamespace:
        assert torch.get_num_threads() == 1, "minutes are of the processor on one thread alone"
        return SimpleNamespace(card=CARD)

    monkeypatch.setattr("lmd.reproduction.experiments.tour.learn", learn)
    with threads(2):
        reproduce(OwnClass(), tmp_path)
        assert torch.get_num_threads() == 2
    metrics = json.loads((tmp_path / "own-class" / "metrics.json").read_text())
    assert experiments.read(metrics).tables[0].lines == (
        ("mine", "not reached", "0.5", "not reached"),
        ("ADMM", *["not reached"] * 3),
        ("OSQP", *["not reached"] * 3),
    )
    assert [figure["file"] for figure in metrics["figures"]] == ["figures/learned.png", "figures/curves.png"]


def test_what_was_learned_gets_a_page_of_its_own(tmp_path: Path) -> None:
    page = write_learned(CARD, tmp_path, "lmd learn my:family").read_text()
    assert page.count("data:image/png") == 2 and "A solver for my &lt;family&gt;: mine" in page
    assert "lmd learn my:family" in page and "most of them" in page
