"""The command line as a user meets it: exit codes, one clear line on bad input, files that are whole."""

import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lmd import __version__
from lmd.cli.program import COMMANDS, main
from lmd.errors import FileError
from lmd.mirrors import Quadratic
from lmd.reproduction import recipes
from lmd.reproduction.bench import contests
from lmd.reproduction.datasets import datasets
from lmd.solvers import LearnedMirrorDescent, load


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


@pytest.mark.parametrize(
    "command", ["", *COMMANDS, "data list", "data fetch", "solve denoise", "solve inpaint", "solve deblur"]
)
def test_help_has_an_example(lmd, command: str) -> None:
    outcome = lmd(*command.split(), "--help")
    assert outcome.code == 0
    assert re.search(r"(Example|Start with)", outcome.out)
    assert re.search(r"^ +lmd ", outcome.out, flags=re.MULTILINE)


def test_without_arguments_it_shows_the_help(lmd) -> None:
    assert "Commands:" in lmd().out


def test_info_says_what_there_is(lmd, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(lmd("info", "--json").out)
    assert found["lmd"] == __version__ and found["threads"] > 0 and found["devices"][0] == "cpu"
    assert found["extras"]["pictures"]["PIL"]
    out = lmd("info").out
    assert found["cache"] in out and str(found["kernels"] or "none: everything works") in out
    monkeypatch.setattr("lmd.kernels.library", lambda: None)
    assert "none: everything works, more slowly" in lmd("info").out


def test_list_names_experiments_and_solvers(lmd) -> None:
    found = json.loads(lmd("list", "--json").out)
    assert {"simplex", "least-squares"} <= {experiment["name"] for experiment in found["experiments"]}
    assert {"least-squares-quadratic-10"} <= {solver["name"] for solver in found["solvers"] if solver["shipped"]}
    benched = {task["name"]: task["bench"] for task in found["tasks"]}
    assert benched["denoise"] == ["denoise"] and benched["least-squares"] == [] and "huber" in benched["models"]
    assert {name for names in benched.values() for name in names} == set(contests())
    shown = lmd("list").out
    assert "least-squares-one-layer-10" in shown and ", masked-counts," in shown


def test_data_are_listed_and_what_ships_needs_no_fetching(lmd) -> None:
    found = {dataset["name"]: dataset for dataset in json.loads(lmd("data", "list", "--json").out)}
    assert found["digits"]["present"] is True
    assert "lmd data fetch mnist" in found["mnist"]["source"]
    assert "mnist" in lmd("data", "list").out
    assert "nothing to fetch" in lmd("data", "fetch", "digits").out


def test_what_ships_with_a_library_is_here_if_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    for absent, here in (("skimage", [True, False]), ("sklearn", [False, False])):
        monkeypatch.setattr(
            "lmd.core.extras.find_spec", lambda name, gone=absent: None if name == gone else found(name)
        )
        assert [dataset.present for dataset in datasets()[:2]] == here


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reproduce", "simplx"), ("experiment", "'simplx'", "simplex", "did you mean")),
        (("reproduce",), ("NAME",)),
        (("reproduce", "simplex", "--preset", "fast"), ("--preset", "fast", "standard")),
        (("reproduce", "simplex", "--seed", "-1"), ("--seed", "-1")),
        (("reproduce", "simplex", "--seed", "many"), ("--seed", "many")),
        (("train", "least-squares"), ("solver", "'least-squares'", "least-squares-quadratic-10")),
        (("frobnicate",), ("frobnicate",)),
        (("data", "fetch", "minst"), ("dataset", "'minst'", "did you mean mnist")),
        (("reproduce", "simplex", "--colour"), ("--colour",)),
        (("report", "no-such-folder"), ("no-such-folder",)),
        (("import", "no-such-checkpoint", "--out", "solver"), ("no-such-checkpoint",)),
        (("import", "x" * 300, "--out", "solver"), ("File name too long",)),
        (("report", "x" * 300), ("File name too long",)),
        (("reproduce", "simplex", "--seed", "9" * 23), ("--seed", "9999", "4294967295")),
        (("reproduce", "simplex", "--out", "x" * 300), ("out", "File name too long")),
        (("reproduce", "simplex", "--images", "x" * 300), ("File name too long",)),
        (("demo", "--seed", str(2**32)), ("--seed", "4294967296")),
        (("train", "least-squares-quadratic-10", "--seed", "9" * 23), ("--seed",)),
        (("train", "least-squares-quadratic-10", "--out", "x" * 300), ("out", "File name too long")),
        (("check", "svm-pair-10", "--iterations", "9" * 20), ("--iterations", "1<=x<=100000")),
        (("check", "svm-pair-10", "--family", "nope"), ("family", "'nope'", "svm")),
        (("bench", "--methods", "nope"), ("methods", "'nope'", "pdhg")),
        (("bench", "--methods", ""), ("methods", "''", "pdhg")),
        (("bench", "--noise", "-5"), ("noise", "-5", "1, 2, 5, 10, 15, 20")),
        (("bench", "--noise", "nan"), ("noise", "nan")),
        (("bench", "--noise", "101"), ("noise", "101")),
        (("bench", "--sizes", "0"), ("sizes", "0", "8 to 8192")),
        (("bench", "--sizes", "9" * 20), ("sizes", "9999", "8 to 8192")),
        (("bench", "--count", "9" * 20), ("--count", "9999")),
        (("bench", "--repeats", "9" * 20), ("--repeats", "9999")),
        (("bench", "--json", "x" * 300), ("json", "File name too long")),
        (("bench", "--json", "."), ("json", "which is a folder")),
        (("bench", "--out", "x" * 300), ("out", "File name too long")),
        (("bench", "lasso", "--images", "nowhere"), ("image", "nowhere")),
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


def test_report_and_reproduce_share_a_folder_with_bench(lmd, tmp_path: Path) -> None:
    bench = lmd("bench", "lasso", "--quick", "--methods", "pdhg", "--out", str(tmp_path))
    assert bench.code == 0, bench.err
    assert lmd("reproduce", "simplex", "--out", str(tmp_path)).code == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'id="bench"' in page and 'id="simplex"' in page and "lasso, noise 5%, batch 1" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench", "index.html", "simplex"]


def test_report_shows_nothing_from_elsewhere(lmd, tmp_path: Path) -> None:
    lmd("reproduce", "simplex", "--out", str(tmp_path / "results"))
    (tmp_path / "secret.txt").write_text("do not show")
    (tmp_path / "results" / "index.html").unlink()
    metrics = tmp_path / "results" / "simplex" / "metrics.json"
    changed = {**json.loads(metrics.read_text()), "figures": [{"file": "../../secret.txt", "caption": "c"}]}
    metrics.write_text(json.dumps(changed))
    assert_one_line(lmd("report", str(tmp_path / "results")), "figure", "secret.txt", "leads elsewhere")
    assert not (tmp_path / "results" / "index.html").exists()


def test_experiments_that_measure_seconds_run_alone(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in the order of the tour, each with the whole machine."""
    from lmd.reproduction import experiments
    from lmd.reproduction.experiments.base import Experiment, Session

    running, seen = [], []

    class Alone(Experiment):
        title, paper = "alone", "no figure"

        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, session: Session) -> None:
            assert running == []
            running.append(self.name)
            session.record("lmd", 0, "seconds", 1.0)
            seen.append((running.pop(), os.getpid()))

    monkeypatch.setattr(experiments, "get", Alone)
    assert lmd("demo", "--out", str(tmp_path)).code == 0
    assert seen == [(name, os.getpid()) for name in experiments.TOUR]


def test_an_experiment_that_fails_is_skipped(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are run, and the page, the terminal, the JSON and the exit code say so."""
    from lmd.errors import InputError
    from lmd.reproduction import experiments
    from lmd.reproduction.experiments.base import Experiment, Session

    class Sometimes(Experiment):
        title, paper = "sometimes", "no figure"

        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, session: Session) -> None:
            session.record("lmd", 0, "seconds", 1.0)
            if self.name == "simplex":
                raise InputError("minutes", "0.4", "at least <4.6>")
            if self.name == "svm":
                raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(experiments, "get", Sometimes)
        outcome = lmd("demo", "--out", str(tmp_path), "--json")
    assert outcome.code == 1 and outcome.err.splitlines() == [
        "lmd: skipped simplex: minutes: got 0.4, expected at least <4.6>",
        "lmd: skipped svm: RuntimeError a bug",
    ]
    found = json.loads(outcome.out)
    assert list(found["skipped"]) == ["simplex", "svm"]
    assert list(found["metrics"]) == [name for name in experiments.TOUR if name not in found["skipped"]]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<strong>simplex</strong> failed and was skipped: minutes: got 0.4, expected at least &lt;4.6&gt;." in page
    assert 'id="denoise"' in page and 'id="simplex"' not in page and "of an earlier run" not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["index.html", *found["metrics"]])


def test_a_full_disk_is_one_line_and_leaves_nothing(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    assert_one_line(lmd("reproduce", "simplex", "--out", str(tmp_path)), "out", "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_import_is_whole_or_not_there(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: object) -> None:
        raise FileError("file", f"{path} (No space left on device)", "a file that can be written")

    monkeypatch.setattr("lmd.zoo.published.import_checkpoint", lambda _: LearnedMirrorDescent(Quadratic(2), 3))
    with monkeypatch.context() as patch:
        patch.setattr("lmd.core.files.write_json", full)
        assert_one_line(lmd("import", "checkpoint", "--out", str(tmp_path / "out")), "No space left on device")
    assert list(tmp_path.iterdir()) == []
    outcome = lmd("import", "checkpoint", "--out", str(tmp_path / "out"))
    assert outcome.out.startswith(f"solver: {tmp_path / 'out'} (")
    assert load(tmp_path / "out").horizon == 3


def test_what_the_system_refuses_is_one_line(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr("lmd.reproduction.page.write_page", full)
    assert_one_line(lmd("report", str(tmp_path)), "somewhere (No space left on device)")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "lmd", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"lmd, version {__version__}\n")


def test_a_name_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a file's name are the user's; what is printed of them must not fail after the work."""
    Image.new("L", (8, 8), 128).save(tmp_path / "in.png")
    call = [sys.executable, "-c", "from lmd.cli.program import main; main()", "solve", "denoise", "in.png", b"\xff.png"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"\\udcff.png: 8 x 8")


def test_train_writes_a_solver_and_refuses_to_overwrite_it(lmd, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = lmd("train", "least-squares-quadratic-10", "--out", str(out))
    assert outcome.code == 0, outcome.err
    before = (out / "weights.safetensors").read_bytes()
    assert load(out).horizon == 10
    assert_one_line(lmd("train", "least-squares-quadratic-10", "--out", str(out)), "out", str(out))
    assert (out / "weights.safetensors").read_bytes() == before
    assert lmd("train", "least-squares-quadratic-10", "--out", str(out), "--resume").code == 0


@pytest.mark.filterwarnings("always")
def test_training_in_vain_is_said_in_one_line(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipes.recipe("least-squares-quadratic-10")
    hopeless = {"quick": {"updates": 3, "batch": 4, "learning_rate": 1e3}}
    changed = replace(made, settings=hopeless)
    monkeypatch.setitem(recipes.task_of("least-squares-quadratic-10").solvers, made.name("least-squares"), changed)
    outcome = lmd("train", "least-squares-quadratic-10", "--out", str(tmp_path / "run"))
    assert outcome.code == 0
    assert outcome.err.startswith("lmd: warning: training never improved") and outcome.err.count("\n") == 1


def test_check_writes_what_it_found_and_its_exit_code_says_whether_promises_hold(lmd, tmp_path: Path) -> None:
    outcome = lmd("check", "least-squares-quadratic-10", "--iterations", "30", "--out", str(tmp_path))
    assert outcome.code == 0, outcome.out
    assert (tmp_path / "check.png").is_file()
    assert json.loads((tmp_path / "check.json").read_text())
    assert "kept" in outcome.out
    assert_one_line(lmd("check", "no-such-solver"), "solver", "'no-such-solver'")


def test_an_unexpected_error_is_one_line_too(lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug\nof ours")

    monkeypatch.setattr("lmd.reproduction.page.write_page", broken)
    outcome = lmd("report", str(tmp_path))
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "a bug of ours" in outcome.err
    monkeypatch.setenv("LMD_DEBUG", "1")
    with pytest.raises(RuntimeError, match="a bug"):
        main(["report", str(tmp_path)])


@pytest.mark.slow
def test_the_demo_tours_one_experiment_of_each_kind(lmd, tmp_path: Path) -> None:
    outcome = lmd("demo", "--out", str(tmp_path))
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    from lmd.reproduction import experiments

    for name in experiments.TOUR:
        assert f'id="{name}"' in page
        assert experiments.get(name).title in outcome.out


def test_the_demo_runs_on_one_thread(lmd, threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(
        "lmd.reproduction.commands._reproduce_all", lambda *_, **__: found.append(torch.get_num_threads())
    )
    with threads(2):
        assert lmd("demo", "--out", str(tmp_path)).code == 0
    assert found == [1]


class TestSolve:
    """`lmd solve`, with a small picture and its mask in the working folder."""

    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
        monkeypatch.chdir(tmp_path)
        generator = np.random.default_rng(0)
        Image.fromarray(generator.integers(0, 256, (16, 24, 4), dtype=np.uint8)).save("in.png")
        Image.fromarray(generator.random((16, 24)) > 0.2).save("mask.png")
        Image.fromarray(np.full((9, 9), 255, dtype=np.uint8)).save("small.png")
        Path("text.png").write_text("not an image")
        Path("empty.png").write_bytes(b"")
        Path("folder.png").mkdir()
        return {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def test_denoise_prints_a_block(self, lmd) -> None:
        outcome = lmd("solve", "denoise", "in.png", "out.png")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith("out.png: 24 x 16 pixels, RGBA, 8 bits\n")
        for word in ("value", "before", "after", "iterations", "seconds", "certificate", "of the minimum", "duality"):
            assert word in outcome.out
        with Image.open("out.png") as out, Image.open("in.png") as before:
            assert out.mode == "RGBA"
            np.testing.assert_array_equal(np.asarray(out)[..., 3], np.asarray(before)[..., 3])

    def test_inpaint_prints_json(self, lmd) -> None:
        outcome = lmd("solve", "inpaint", "in.png", "out.tif", "--mask", "mask.png", "--solver", "pdhg", "--json")
        found = json.loads(outcome.out)
        assert found["value_after"] < found["value_before"]
        assert 0 <= found["certificate"]["relative_bound"] < 0.01
        assert (found["width"], found["height"], found["mode"], found["bits"]) == (24, 16, "RGBA", 8)
        assert found["iterations"] > 0 and found["seconds"] > 0 and found["solver"] == "pdhg"
        assert Path("out.tif").is_file()

    def test_what_is_set_is_used(self, lmd) -> None:
        settings = ("--iterations", "3", "--weight", "0.1", "--solver", "fgp", "--isotropic", "--json")
        found = json.loads(lmd("solve", "denoise", "in.png", "out.jpg", *settings).out)
        assert (found["iterations"], found["weight"], found["solver"], found["isotropic"]) == (3, 0.1, "fgp", True)
        assert found["notes"] == ["JPEG holds no transparency: write PNG or TIFF to keep it"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ("denoise", ("'OUT'", "neither IN nor OUT is given")),
            ("denoise in.png", ("'OUT'", "IN is in.png", "write")),
            ("denoise none.png out.png", ("image", "no file none.png", "PNG, JPEG or TIFF")),
            ("denoise text.png out.png", ("image", "text.png, not an image", "PNG, JPEG or TIFF")),
            ("denoise empty.png out.png", ("image", "empty.png, an empty file")),
            ("denoise folder.png out.png", ("image", "folder.png, a folder with no pictures in it")),
            ("denoise none*.png out", ("image", "none*.png, which matches no file")),
            ("denoise in.png mask.png", ("out", "mask.png, which exists already", "a new name, or --overwrite")),
            ("denoise in.png out.png --weight 0.3 --plot curve.png", ("plot", "no --weight")),
            ("denoise in.png out.png --plot curve.txt", ("plot", "curve.txt", ".png")),
            (
                "denoise in.png out.png --solver fgp --order 2",
                ("solver", "fgp to denoise (", "SecondOrderModel", "pdhg"),
            ),
            ("denoise in.png out.png --iterations 2.5", ("--iterations", "'2.5' is not a valid integer.")),
            ("denoise in.png out.png --tolerance x", ("--tolerance", "'x' is not a valid number.")),
            ("deblur in.png out.png --kernel gaussian:1e9", ("kernel", "gaussian:1e9", "at most 1000 pixels")),
            ("denoise \x1b[31mno.png out.png", ("image", "\\x1b[31mno.png, which matches no file")),
            ("deblur in.png out.png --kernel square:3", ("kernel", "square:3")),
            ("deblur in.png out.png", ("--kernel",)),
            ("denoise in.png out.gif", ("out", "out.gif", ".png, .jpg")),
            ("denoise in.png out", ("out", ".png, .jpg")),
            ("denoise in.png none/out.png", ("out", "none/out.png", "existing folder")),
            ("denoise in.png in.png", ("out", "in.png", "never overwritten")),
            ("denoise in.png ./folder.png/../in.png", ("out", "never overwritten")),
            ("denoise in.png out.png --solver pdgh", ("solver", "'pdgh'", "did you mean pdhg")),
            ("denoise in.png out.png --solver no/where", ("no/where",)),
            ("denoise in.png out.png --weight 0", ("weight", "0.0", "positive")),
            ("denoise in.png out.png --weight much", ("--weight", "much", "neither a number nor auto")),
            ("denoise in.png out.png --iterations 0", ("--iterations", "0", "1<=x<=1000000")),
            (f"denoise in.png out.png --iterations {'9' * 20}", ("--iterations", "9999", "1<=x<=1000000")),
            ("denoise in.png out.png --weight 1e300", ("weight", "non-finite")),
            ("denoise in.png out.png --weight nan", ("weight", "nan")),
            (f"denoise in.png {'x' * 300}.png", ("out", "File name too long")),
            (f"denoise {'x' * 300}.png out.png", ("image", "File name too long")),
            (f"inpaint in.png out.png --mask {'x' * 300}", ("mask", "File name too long")),
            (f"denoise in.png out.png --solver {'x' * 300}", ("File name too long",)),
            ("denoise in.png out.png --tolerance -1", ("tolerance", "-1.0", "positive")),
            ("denoise in.png out.png --mask mask.png", ("--mask",)),
            ("inpaint in.png out.png", ("--mask",)),
            ("inpaint in.png out.png --mask none.png", ("mask", "no file none.png")),
            ("inpaint in.png out.png --mask small.png", ("mask", "small.png of 9 x 9 pixels", "24 x 16")),
            ("inpaint in.png out.png --mask in.png", ("mask", "in.png", "black (lost) and white (kept)")),
            ("inpaint in.png mask.png --mask mask.png", ("out", "mask.png", "never overwritten")),
            ("inpaint in.png out.png --mask mask.png --solver fgp", ("solver", "fgp to inpaint", "pdhg")),
        ],
    )
    def test_bad_input_is_one_line_and_touches_nothing(
        self, lmd, files: dict[str, bytes], arguments: str, words: tuple[str, ...]
    ) -> None:
        assert_one_line(lmd("solve", *arguments.split()), *words)
        assert {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()} == files
        assert list(Path("folder.png").iterdir()) == []

    def test_the_weight_is_chosen_unless_it_is_given(self, lmd, files: dict[str, bytes]) -> None:
        assert "[default: auto]" in lmd("solve", "denoise", "--help").out
        found = json.loads(lmd("solve", "denoise", "in.png", "a.png", "--json", "--plot", "curve.png").out)
        assert min(found["automatic"]["weights"]) <= found["weight"] <= max(found["automatic"]["weights"])
        assert "automatic" in lmd("solve", "denoise", "in.png", "b.png").out
        with Image.open("curve.png") as curve:
            assert min(curve.size) > 300

    def test_the_summary_names_the_model_and_the_solver(self, lmd) -> None:
        options = ("--coupled", "--huber", "0.1", "--isotropic", "--weight", "0.2")
        told = lmd("solve", "denoise", "in.png", "a.png", *options).out
        assert "TV denoising, isotropic, coupled, huber 0.1, weight" in told and " of learned-fgp\n" in told
        found = json.loads(
            lmd("solve", "denoise", "in.png", "b.png", "--order", "2", "--data", "absolute", "--json").out
        )
        assert (found["order"], found["data"], found["coupled"], found["huber"]) == (2, "absolute", True, 0.0)

    def test_a_folder(self, lmd, files: dict[str, bytes]) -> None:
        outcome = lmd("solve", "denoise", ".", "out", "--json", "--workers", "2")
        assert outcome.code == 1
        told = {line["image"]: line for line in map(json.loads, outcome.out.splitlines())}
        assert {name for name, line in told.items() if "error" in line} == {"empty.png", "text.png"}
        assert sorted(path.name for path in Path("out").iterdir()) == ["in.png", "mask.png", "small.png"]
        assert outcome.err.splitlines()[-1] == "lmd: 2 of 5 failed" and "lmd: text.png: image: got" in outcome.err
        assert_one_line(lmd("solve", "denoise", ".", "out"), "out", "which exist already", "--overwrite")
        again = lmd("solve", "denoise", "in.png", "small.png", "out", "--overwrite")
        assert again.code == 0 and len(again.out.splitlines()) == 2

    def test_a_picture_larger_than_memory(self, lmd, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lmd.core.checks.UNCHECKED", 0)
        monkeypatch.setattr("lmd.core.memory.available_memory", lambda: 1000)
        assert_one_line(lmd("solve", "denoise", "in.png", "out.png"), "image", "24 x 16 pixels", "GB of memory")
        assert not Path("out.png").exists()


def test_images_go_to_experiments_that_have_test_images(lmd, tmp_path: Path) -> None:
    absent = tmp_path / "absent.npz"
    out = ("--out", str(tmp_path / "out"))
    assert_one_line(lmd("reproduce", "denoise", "--images", str(absent), *out), "images", "absent.npz")
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    outcome = lmd("reproduce", "simplex", "--images", str(tmp_path / "small.png"), *out)
    assert_one_line(outcome, "images", "simplex, which has no test images")


def test_the_data_folder_takes_the_place_of_the_one_in_the_environment(
    lmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMD_DATA", str(tmp_path / "elsewhere"))
    out = ("--out", str(tmp_path / "out"))
    assert_one_line(lmd("reproduce", "simplex", "--data-dir", str(tmp_path / "absent"), *out), "data-dir", "absent")
    assert lmd("reproduce", "simplex", "--data-dir", str(tmp_path), "--json", *out).code == 0
    assert os.environ["LMD_DATA"] == str(tmp_path)


@pytest.mark.parametrize(("words", "code", "said"), [(["--version"], 0, "lmd, version"), (["no-such-thing"], 2, "")])
def test_the_process_is_left_with_its_code_after_all_that_was_registered(words, code, said):
    """Nothing is taken apart in the end, but output is written out and what others asked for is done."""
    text = "import atexit, lmd.cli; atexit.register(print, 'the end'); lmd.cli.program()"
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stdout.startswith(said) and done.stdout.endswith("the end\n")
    assert (code == 0) == (done.stderr == "") and "Traceback" not in done.stderr


def test_an_interrupted_process_waits_for_no_thread() -> None:
    """As those that still work on pictures of a folder."""
    late = "threading.Thread(target=lambda: (time.sleep(9), os.write(1, b'late'))).start()"
    main = f"lmd.cli.program.__globals__['main'] = lambda: ({late}, sys.exit(130))"
    text = f"import os, sys, threading, time, lmd.cli; {main}; lmd.cli.program()"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_output_that_nobody_reads_is_no_error() -> None:
    """As `lmd data list >&-` in a shell, which leaves the program without a stdout."""
    call = f"exec {sys.executable} -m lmd data list >&-"
    done = subprocess.run(["sh", "-c", call], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
