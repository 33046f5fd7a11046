"""The command line as a user meets it: exit codes, one clear line on bad input, files that are whole."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from lmd.cli import cli, main
from lmd.solvers import load


class Outcome:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def lmd(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return call


def assert_one_line(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith("lmd: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err + outcome.out
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize("command", ["", *cli.commands, "data list", "data fetch"])
def test_help_has_an_example(lmd, command: str) -> None:
    outcome = lmd(*command.split(), "--help")
    assert outcome.code == 0
    assert re.search(r"(Example|Start with)", outcome.out)
    assert re.search(r"^ +lmd ", outcome.out, flags=re.MULTILINE)


def test_without_arguments_it_shows_the_help(lmd) -> None:
    assert "Commands:" in lmd().out


def test_list_names_experiments_and_solvers(lmd) -> None:
    found = json.loads(lmd("list", "--json").out)
    assert {"simplex", "least-squares"} <= {experiment["name"] for experiment in found["experiments"]}
    assert {"least-squares-quadratic"} <= {solver["name"] for solver in found["solvers"] if solver["shipped"]}
    assert "least-squares-one-layer" in lmd("list").out


def test_data_are_listed_and_what_ships_needs_no_fetching(lmd) -> None:
    found = {dataset["name"]: dataset for dataset in json.loads(lmd("data", "list", "--json").out)}
    assert found["digits"]["present"] is True
    assert "lmd data fetch mnist" in found["mnist"]["source"]
    assert "mnist" in lmd("data", "list").out
    assert "nothing to fetch" in lmd("data", "fetch", "digits").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reproduce", "simplx"), ("experiment", "'simplx'", "simplex", "did you mean")),
        (("reproduce",), ("NAME",)),
        (("reproduce", "simplex", "--preset", "fast"), ("--preset", "fast", "standard")),
        (("reproduce", "simplex", "--seed", "-1"), ("--seed", "-1")),
        (("reproduce", "simplex", "--seed", "many"), ("--seed", "many")),
        (("train", "least-squares"), ("solver", "'least-squares'", "least-squares-quadratic")),
        (("frobnicate",), ("frobnicate",)),
        (("data", "fetch", "minst"), ("dataset", "'minst'", "did you mean mnist")),
        (("reproduce", "simplex", "--colour"), ("--colour",)),
        (("report", "no-such-folder"), ("no-such-folder",)),
        (("import", "no-such-checkpoint", "--out", "solver"), ("no-such-checkpoint",)),
    ],
)
def test_bad_input_is_one_line(
    lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(lmd(*arguments), *words)
    assert list(tmp_path.iterdir()) == [], "bad input leaves nothing behind"


def test_an_output_folder_that_is_a_file_is_left_alone(lmd, tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("mine")
    assert_one_line(lmd("reproduce", "simplex", "--out", str(file)), "out", str(file))
    assert_one_line(lmd("reproduce", "simplex", "--out", str(file / "below")), "out")
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_that_cannot_be_written(lmd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert_one_line(lmd("reproduce", "simplex", "--out", str(locked)), "out", str(locked))


def test_reproduce_writes_metrics_figures_log_and_page(lmd, tmp_path: Path) -> None:
    outcome = lmd("reproduce", "simplex", "--out", str(tmp_path))
    assert outcome.code == 0
    assert "loss at 50" in outcome.out
    assert str(tmp_path / "index.html") in outcome.out
    metrics = json.loads((tmp_path / "simplex" / "metrics.json").read_text())
    assert metrics["experiment"] == "simplex"
    assert metrics["preset"] == "quick"
    assert metrics["versions"]["torch"] == str(torch.__version__)
    assert all((tmp_path / "simplex" / figure["file"]).is_file() for figure in metrics["figures"])
    events = [json.loads(line)["event"] for line in (tmp_path / "simplex" / "run.log.jsonl").read_text().splitlines()]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "simplex"], "nothing half-written is left"


def test_reproduce_keeps_what_else_is_in_the_folder(lmd, tmp_path: Path) -> None:
    (tmp_path / "simplex").mkdir()
    (tmp_path / "simplex" / "notes.txt").write_text("mine")
    answer = json.loads(lmd("reproduce", "simplex", "--out", str(tmp_path), "--json").out)
    assert Path(answer["metrics"]["simplex"]).is_file()
    assert (tmp_path / "simplex" / "notes.txt").read_text() == "mine"


def test_report_refuses_damaged_metrics_and_keeps_the_page(lmd, tmp_path: Path) -> None:
    (tmp_path / "simplex").mkdir()
    (tmp_path / "index.html").write_text("old")
    (tmp_path / "simplex" / "metrics.json").write_text('{"experiment": "simplex", "rows"')
    assert_one_line(lmd("report", str(tmp_path)), "metrics.json", "damaged")
    (tmp_path / "simplex" / "metrics.json").write_text('{"experiment": "simplex"}')
    assert_one_line(lmd("report", str(tmp_path)), "metrics.json", "rows")
    assert (tmp_path / "index.html").read_text() == "old"


def test_train_writes_a_solver_and_refuses_to_overwrite_it(lmd, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = lmd("train", "least-squares-quadratic", "--out", str(out))
    assert outcome.code == 0, outcome.err
    before = (out / "weights.safetensors").read_bytes()
    assert load(out).horizon == 10
    assert_one_line(lmd("train", "least-squares-quadratic", "--out", str(out)), "out", str(out))
    assert (out / "weights.safetensors").read_bytes() == before
    assert lmd("train", "least-squares-quadratic", "--out", str(out), "--resume").code == 0


def test_check_writes_what_it_found_and_its_exit_code_says_whether_promises_hold(lmd, tmp_path: Path) -> None:
    outcome = lmd("check", "least-squares-quadratic", "--iterations", "30", "--out", str(tmp_path))
    assert outcome.code == 0, outcome.out
    assert (tmp_path / "check.png").is_file()
    assert json.loads((tmp_path / "check.json").read_text())
    assert "kept" in outcome.out
    assert_one_line(lmd("check", "no-such-solver"), "solver", "'no-such-solver'")


def test_an_unexpected_error_is_one_line_too(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug\nof ours")

    monkeypatch.setattr("lmd.report.page.write_page", broken)
    outcome = lmd("report", str(tmp_path))
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "a bug of ours" in outcome.err
    monkeypatch.setenv("LMD_DEBUG", "1")
    with pytest.raises(RuntimeError, match="a bug"):
        main(["report", str(tmp_path)])


def test_the_demo_tours_every_experiment(lmd, tmp_path: Path) -> None:
    outcome = lmd("demo", "--out", str(tmp_path))
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    from lmd import experiments

    for name in experiments.names():
        assert f'id="{name}"' in page
        assert experiments.get(name).title in outcome.out
