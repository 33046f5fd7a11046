"""The page of the paper: every figure and table has its place, and its numbers are those of the files."""

import json
import re
from pathlib import Path

import pytest

from lmd.errors import FileError
from lmd.reproduction.experiments import get, names
from lmd.reproduction.experiments.paper import CLAIMS, TABLE_1, TABLE_3, write_paper
from lmd.reproduction.tables import row


def write_metrics(folder: Path, experiment: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(parents=True)
    metrics = {"experiment": experiment, "preset": "standard", "seed": 0, "versions": {}, "facts": {"data": "made up"}}
    (folder / "metrics.json").write_text(json.dumps({**metrics, "rows": rows}))


def test_every_figure_and_table_of_the_paper_is_on_the_page(tmp_path: Path) -> None:
    wanted = {claim.experiment for claim in CLAIMS} | {"denoise-noise-levels", "cost"}
    for name in wanted:
        rows = [row("lmd-adaptive", 10, "relative_gap", 0.0123), row("lmd", 10, "psnr", 41.25, noise=5)]
        rows += [row("interior-learned", 10, "relative_gap", 3e-8), row("newton-learned", 10, "loss", 2e-6)]
        write_metrics(tmp_path / "results" / name, name, rows)
    text = write_paper(tmp_path / "results", tmp_path / "paper.md").read_text(encoding="utf-8")
    figures = {
        int(number) for line in re.findall(r"^## Figures? (.*)$", text, re.M) for number in re.findall(r"\d+", line)
    }
    assert figures == set(range(1, 15))
    assert re.findall(r"^## (Table \d)$", text, re.M) == ["Table 1", "Table 2", "Table 3"]
    assert "adaptive LMD 0.0123" in text
    assert "interior-point steps from a learned start 3.0e-08" in text and "a learned start 2.0e-06" in text
    assert "32.92 / 41.2" in text, "the paper's number and ours in one cell"
    assert "`lmd reproduce denoise --preset standard --seed 0`" in text


def test_the_claims_belong_to_experiments_that_say_the_same_figures() -> None:
    for claim in CLAIMS:
        numbers = re.findall(r"\d+", claim.place)
        assert claim.experiment in names()
        assert set(numbers) <= set(re.findall(r"\d+", get(claim.experiment).paper)), claim.place


def test_the_tables_of_the_paper_have_six_levels_of_noise_and_five_counts() -> None:
    assert {len(line) for columns in TABLE_1.values() for line in columns.values()} == {6}
    assert {len(columns) for columns in TABLE_3.values()} == {3, 5}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_metrics(tmp_path / "simplex", "simplex", [])
    with pytest.raises(FileError, match="without least-squares, svm-closed-form"):
        write_paper(tmp_path, tmp_path / "paper.md")
    assert not (tmp_path / "paper.md").exists()
