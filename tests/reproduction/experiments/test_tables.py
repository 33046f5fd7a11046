"""Each experiment makes its tables of the rows in its metrics.json, whatever they lack."""

import math
from typing import Any

import pytest

from lmd.reproduction import experiments
from lmd.reproduction.experiments import read
from lmd.reproduction.tables import row

ROWS = [
    row("svm", 20, "excess_over_fallback", 0.1),
    row("svm", 20, "excess_over_fallback", 0.1, fallback="fgp", condition="plain"),
    row("gd", 5, "psnr", 30.0, noise=1),
    row("lmd", 5, "psnr", 31.0, noise=5),
    row("gd", 5, "loss", 1.0, rows=3),
    row("gd", "last", "seconds", 1.0, rows=3),
    row("lbfgs", "to gap", "seconds_to_gap_1e-2", 0.5),
    row("gd", "to gap", "seconds_to_gap_1e-2", math.nan),
    row("lmd", 10, "train_seconds", 0.1),
    row("pdhg", 10, "seconds_to_gap_1e-1", 0.1, problem="denoise", noise=5, batch=1, size=32),
]
"""Rows of every kind, and without what a table would like to have beside them; a setting may have any name."""

OWN = {
    "denoise-noise-levels": ["PSNR to the minimiser, iteration 5"],
    "svm": ["One instance from a random start"],
    "linear-classifier": ["One instance from a random start"],
    "exact": ["noise 1", "noise 5"],
    "cost": ["Cost of a batch; memory is the peak of a process"],
}


def made(name: str) -> list[Any]:
    return read({"experiment": name, "rows": ROWS}).tables


@pytest.mark.parametrize("name", [*experiments.names(), "somebody's own"])
def test_an_experiment_shows_the_loss_and_what_is_its_own(name: str) -> None:
    assert [table.title for table in made(name)] == ["rows 3", *OWN.get(name, [])]


def test_quality_against_the_noise() -> None:
    assert made("denoise-noise-levels")[1].lines == (("gd", "30", ""), ("lmd", "", "31"))


def test_times_to_a_target() -> None:
    assert made("svm")[1].lines == (("lbfgs", "0.5"), ("gd", "not reached"))


def test_the_bench_has_tables_of_its_own() -> None:
    assert [table.title for table in made("bench")] == ["denoise, noise 5%, 32 x 32, batch 1"]


def test_a_file_without_rows_has_no_tables() -> None:
    assert [read({"experiment": name, "rows": []}).tables for name in (*experiments.names(), "bench")] == [[]] * 17
