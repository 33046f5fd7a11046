"""The folder of a run: what is in it, what goes on from it, and that no SIGKILL changes a bit of it."""

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lmd
from lmd import InputError
from lmd.core.files import read_json, read_tensors
from lmd.errors import FileError

WORKER = Path(__file__).with_name("worker.py")


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def tensors_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def log_of(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture
def train(worker, tmp_path):
    def go(folder="run", solver=None, family=None, **settings):
        arguments = {**worker.SETTINGS, "schedule": "constant", "updates": 20, "out": tmp_path / folder, **settings}
        return lmd.train(solver or worker.rough_solver(), family or worker.BowlFamily(), **arguments)

    return go


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    out = tmp_path_factory.mktemp("kill")
    done = subprocess.run([sys.executable, WORKER, "kill", out], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["killed", "killed again"])
def test_a_run_that_was_killed_ends_in_the_same_bits(killed, name):
    assert read_json(killed / "kills.json") >= 20
    assert tensors_of(killed / name) == tensors_of(killed / "whole")
    assert len(tensors_of(killed / "whole")) == 1 + 2
    assert log_of(killed / name) == log_of(killed / "whole")
    assert [line["updates"] for line in log_of(killed / name)][-1] == 60
    assert files_of(killed / name) == files_of(killed / "whole")  # and nothing half-written is left behind


def test_the_folder_of_a_run(worker, train, tmp_path):
    result = train()
    assert files_of(tmp_path / "run") == [
        "checkpoints",
        "checkpoints/updates-00000014.json",
        "checkpoints/updates-00000014.safetensors",
        "checkpoints/updates-00000020.json",
        "checkpoints/updates-00000020.safetensors",
        "log.jsonl",
        "solver.json",
        "weights.safetensors",
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines == list(result.records)
    assert [line["updates"] for line in lines] == [0, 3, 6, 9, 10, 12, 15, 18, 20]
    assert {"loss", "value", "inconsistency", "learning_rate", "seconds", "validation_loss"} <= set(lines[-1])
    loaded = lmd.solvers.load(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), result.solver.parameters(), strict=True))
    card = read_json(tmp_path / "run" / "solver.json")["card"]["training"]
    assert card["family"] == "bowl" and card["updates"] == 20 and card["settings"]["batch"] == 8
    assert card["best_validation"] == vars(result.best_validation)


def test_without_validation_the_last_weights_are_exported(train, tmp_path):
    train(validate_every=0)
    exported = read_tensors(tmp_path / "run" / "weights.safetensors")
    last = read_tensors(tmp_path / "run" / "checkpoints" / "updates-00000020.safetensors")
    assert all(torch.equal(tensor, last[f"weights/{name}"]) for name, tensor in exported.items())
    assert not any(name.startswith("best/") for name in last)


def test_the_weights_come_from_the_checkpoint_and_not_from_the_solver(worker, train, tmp_path):
    train("once")
    train("twice", callback=lambda record: record["updates"] == 10)
    solver = worker.rough_solver()
    with torch.no_grad():
        solver.mirror.forwards.zero_()
    train("twice", solver=solver, resume=True)
    assert tensors_of(tmp_path / "twice").keys() - tensors_of(tmp_path / "once").keys() == set()
    for name, data in tensors_of(tmp_path / "once").items():
        assert tensors_of(tmp_path / "twice")[name] == data
    assert log_of(tmp_path / "twice") == log_of(tmp_path / "once")


def test_a_run_can_be_prolonged_and_its_checkpoints_spaced_anew(train, tmp_path):
    train("long", updates=40)
    train("short", updates=20)
    result = train("short", updates=40, resume=True, checkpoint_every=1000, recompute=True)
    assert result.updates == 40
    assert result.records[-1]["updates"] == 40
    path = "checkpoints/updates-00000040.safetensors"
    assert tensors_of(tmp_path / "short")[path] == tensors_of(tmp_path / "long")[path]


def test_a_finished_run_is_answered_from_its_folder(train):
    first = train()
    again = train(resume=True)
    assert again.updates == 20 and again.records == first.records
    assert again.best_validation == first.best_validation
    assert all(torch.equal(a, b) for a, b in zip(first.solver.parameters(), again.solver.parameters(), strict=True))


def test_resume_in_an_empty_folder_starts_a_run(train, tmp_path):
    assert train(resume=True).updates == 20
    assert (tmp_path / "run" / "log.jsonl").is_file()


@pytest.mark.parametrize("what", ["run", "log", "solver"])
def test_a_folder_that_holds_something_is_not_touched(worker, train, tmp_path, what):
    if what == "run":
        train(updates=3)
    elif what == "log":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "log.jsonl").write_text("mine\n")
    else:
        lmd.solvers.save(worker.exact_solver(), tmp_path / "run")
    before = {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in files_of(tmp_path / "run")}
    with pytest.raises(FileError, match=r"out: got .*, which holds a run, expected another folder, or resume=True"):
        train()
    if what != "run":
        with pytest.raises(FileError, match=r"resume: got .*, which has no checkpoint"):
            train(resume=True)
    assert {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in files_of(tmp_path / "run")} == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"learning_rate": 0.5}, "learning_rate: got 0.5, expected 0.01, as the run in "),
        ({"value_weights": [1, 1, 1, 1]}, "value_weights: got [1.0, 1.0, 1.0, 1.0], expected all"),
        ({"schedule": "cosine"}, "schedule: got cosine, expected constant"),
        ({"updates": 10}, "updates: got 10, expected 20 or more"),
        ({"solver": "other"}, "solver.mirror.hidden: got 5, expected 8"),
        ({"family": "other"}, "family.name: got starts, expected bowl"),
        ({"family": "same name"}, "family.start_value: got "),
    ],
)
def test_a_changed_run_is_refused_and_says_what_differs(worker, train, tmp_path, change, says):
    train()
    before = tensors_of(tmp_path / "run"), (tmp_path / "run" / "log.jsonl").read_bytes()
    if "solver" in change:
        change = {"solver": lmd.solvers.LearnedMirrorDescent(worker.RoughPair(hidden=5), 4, initial_step=0.05)}
    if "family" in change:
        change = {"family": worker.StartsFamily() if change["family"] == "other" else worker.BowlFamily(scale=2.0)}
    with pytest.raises(InputError) as caught:
        train(resume=True, **change)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert before == (tensors_of(tmp_path / "run"), (tmp_path / "run" / "log.jsonl").read_bytes())


def test_more_updates_would_change_a_cosine_schedule(train):
    train(schedule="cosine")
    with pytest.raises(InputError, match="updates: got 40, expected 20, as the run in"):
        train(schedule="cosine", updates=40, resume=True)


@pytest.mark.parametrize(
    ("ending", "damage"),
    [("safetensors", "cut"), ("safetensors", "older"), ("safetensors", "missing"), ("json", "cut")],
)
def test_a_damaged_checkpoint_is_passed_over(train, tmp_path, ending, damage):
    train("whole")
    train("damaged")
    path = tmp_path / "damaged" / "checkpoints" / f"updates-00000020.{ending}"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "older":
        path.write_bytes(path.with_stem("updates-00000014").read_bytes())
    else:
        path.unlink()
    train("damaged", resume=True)
    assert tensors_of(tmp_path / "damaged") == tensors_of(tmp_path / "whole")
    assert log_of(tmp_path / "damaged") == log_of(tmp_path / "whole")


def test_when_every_checkpoint_is_damaged_it_is_said_and_nothing_is_lost(train, tmp_path):
    train()
    for path in (tmp_path / "run").glob("checkpoints/*.safetensors"):
        path.write_bytes(b"no tensors")
    before = files_of(tmp_path / "run")
    with pytest.raises(FileError, match="where every checkpoint is damaged"):
        train(resume=True)
    assert files_of(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", None),
        ("updates", -1),
        ("settings", []),
        ("best", {"updates": 1}),
        ("sha256", "x"),
        ("checksum", None),
    ],
)
def test_a_state_of_other_types_is_no_checkpoint(train, tmp_path, key, value):
    train()
    for path in (tmp_path / "run").glob("checkpoints/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(FileError, match="where every checkpoint is damaged"):
        train(resume=True)


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"{}\n", b"[" * 9999])
def test_a_damaged_log_is_written_again(train, tmp_path, content):
    train("whole")
    train(callback=lambda record: record["updates"] == 10)
    (tmp_path / "run" / "log.jsonl").write_bytes(content)
    train(resume=True)
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")


def test_a_changed_number_is_noticed(train, tmp_path):
    train()
    for path in (tmp_path / "run").glob("checkpoints/*.json"):
        path.write_text(path.read_text().replace('"skipped": 0', '"skipped": 1', 1))
    with pytest.raises(FileError, match="where every checkpoint is damaged"):
        train(resume=True)


class TestOneRunAtATime:
    """Two runs in one folder would write over each other: the second is told so, and nothing is changed."""

    @pytest.mark.parametrize("resume", [False, True])
    def test_the_second_is_refused(self, train, tmp_path, resume):
        said = []

        def start_another(record):
            if record["updates"] == 10:
                with pytest.raises(FileError, match=r"^out: got .*run, which another run works in, expected") as caught:
                    train(resume=resume)
                said.append(str(caught.value))

        train(callback=start_another)
        train("alone")
        assert len(said) == 1 and "\n" not in said[0]
        assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "alone")
        assert files_of(tmp_path / "run") == files_of(tmp_path / "alone"), "no lock is left"

    def test_a_run_that_failed_lets_others_in(self, train, tmp_path):
        def fail(record):
            if record["updates"] == 10:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(callback=fail)
        with pytest.raises(InputError, match="learning_rate"):
            train(resume=True, learning_rate=0.5)
        assert train(resume=True).updates == 20


@pytest.mark.parametrize("ending", ["safetensors", "json"])
def test_a_full_disk_leaves_no_half_checkpoint(train, tmp_path, monkeypatch, ending):
    train(callback=lambda record: record["updates"] == 10)
    before = files_of(tmp_path / "run")
    replace = os.replace

    def full(source, target):
        if Path(target).suffix == f".{ending}" and "checkpoints" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=rf"{ending} \(No space left on device\)"):
        train(resume=True)
    assert files_of(tmp_path / "run") == before
    monkeypatch.undo()
    assert train(resume=True).updates == 20


def test_a_folder_that_cannot_be_written_is_named(train, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(FileError, match=r"out: got .*, where a file is in the way, expected a folder"):
        train()


@pytest.mark.parametrize("call", ["mkdir", "replace", "fsync", "open"])
def test_what_the_disk_refuses_is_one_line_and_the_run_goes_on(train, tmp_path, monkeypatch, call):
    whole = train("whole")
    real, count = getattr(os, call), iter(range(10**6))

    def full(*given, **named):
        if next(count) == 9 and str(tmp_path) in "".join(map(str, given)) + str(tmp_path) * (call == "fsync"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given, **named)

    monkeypatch.setattr(os, call, full)
    with contextlib.suppress(FileError):  # and nothing else
        train()
    monkeypatch.undo()
    again = train(resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.solver.parameters(), again.solver.parameters(), strict=True))
