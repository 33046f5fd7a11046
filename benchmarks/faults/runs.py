"""Runs that are killed, run twice at the same time, or go on from damaged files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import Ended, Trials, case, forked

MINUTES = 0.05
UPDATES = 24

SETTINGS = {"checkpoint_every": 4, "validate_every": 4, "log_every": 2}


@functools.cache
def make_small() -> None:
    """Few instances, settings, solvers to learn and updates, so that a class is learned in a second or two."""
    settings: Any = importlib.import_module("lmd.training.learn")
    tuning: Any = importlib.import_module("lmd.training.tuning")
    settings.N_TRAINING, settings.N_VALIDATION, settings.N_TEST = 40, 20, 60
    settings.N_RUNGS, settings.MAX_TRAINING_FACTOR, settings.DIVISOR = 2, 1, 1
    settings.MIN_UPDATES, settings.MAX_UPDATES, settings.MAX_INITIALISER_UPDATES = 2, 10, 120
    settings.N_TIMED_UPDATES = tuning.N_TIMED_UPDATES = tuning.N_TAIL_TRIALS = 1
    tunes, learns = settings.propose_classical, settings.propose_learned

    def first(setting: Any) -> Any:
        axes = tuple((axis[place],) for axis, place in zip(setting.axes, setting.first, strict=True))
        return dataclasses.replace(setting, axes=axes, first=(0,) * len(axes))

    settings.propose_classical = lambda info: {name: first(grid) for name, grid in tunes(info).items()}
    settings.propose_learned = lambda *given: dict(list(learns(*given).items())[:2])


def family() -> Any:
    """A small class."""
    from lmd.problems import ControlFamily

    return ControlFamily(states=2, inputs=1, horizon=4)


def learn(folder: Path, **choices: Any) -> Any:
    """Learn the small class."""
    import lmd

    return lmd.learn(family(), minutes=MINUTES, out=folder, **choices)


def train(folder: Path, **choices: Any) -> Any:
    """Train a small solver."""
    from faults import work

    return work.trained(UPDATES, out=folder, **SETTINGS, **choices)


def numbers_of(folder: Path) -> dict[str, Any]:
    """Whatever a run has found, to the bit, but for what a clock has measured."""
    described = json.loads((folder / "solver.json").read_text())
    tensors = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}
    leftover = sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
    return {"solver": described["solver"]["type"], **tensors, "leftover": leftover}


def kill_until_done(run: Callable[[], object], seconds: float, kills: int, draw: random.Random) -> tuple[int, Ended]:
    """Run in forks that are killed at random moments, until `kills` of them were or one has ended; then to the end."""
    done = 0
    while done < kills:
        ended = forked(run, 60, lambda child: _kill_after(child, draw.uniform(0, seconds)))
        if ended.code != -signal.SIGKILL:
            return done, ended
        done += 1
    return done, forked(run, 120)


def _kill_after(child: int, seconds: float) -> None:
    """Kill a fork after so many seconds, or when it has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)


def killed(trials: Trials, run: Callable[..., object], kills: int, settled: Callable[[Path, Path], object]) -> None:
    """Kill runs until so many were killed; each ends in the bits of one that was not.

    `settled` gives the run that is not killed what a clock has measured in the other.
    """
    draw, total, number = random.Random(0), 0, 0
    begun = time.monotonic()
    warm = forked(lambda: run(Path("warm")), 120)
    seconds = time.monotonic() - begun
    trials.check(warm.code == 0, warm)
    while total < kills and number < kills:
        folder, whole = Path(f"killed-{number}"), Path(f"whole-{number}")
        done, ended = kill_until_done(lambda f=folder: run(f, resume=True), seconds / 2, kills - total, draw)
        total, number = total + done, number + 1
        if not trials.check(ended.code == 0, f"after {done} kills: {ended}"):
            continue
        settled(folder, whole)
        begun = time.monotonic()
        plain = forked(lambda w=whole: run(w, resume=True), 120)
        seconds = min(seconds, time.monotonic() - begun)  # the first run may have had to wait for other programs
        same = plain.code == 0 and numbers_of(folder) == numbers_of(whole)
        for _ in range(done):
            trials.check(same, f"another solver after {done} kills, or files left behind: {plain}")
        shutil.rmtree(folder), shutil.rmtree(whole)


@case("kills of train", seconds=600)
def kills_of_train(trials: Trials) -> None:
    """A hundred SIGKILLs at random moments of lmd.train(resume=True)."""
    from faults import work

    work.trained(1)
    killed(trials, train, trials.few(100, 4), lambda folder, whole: None)


@case("kills of learn", seconds=600)
def kills_of_learn(trials: Trials) -> None:
    """A hundred SIGKILLs at random moments of lmd.learn(resume=True)."""
    import_everything()

    def settled(folder: Path, whole: Path) -> None:
        whole.mkdir()
        shutil.copy(folder / "learn.json", whole / "learn.json")

    killed(trials, learn, trials.few(100, 2), settled)


@case("two processes", seconds=300)
def two_processes(trials: Trials) -> None:
    """Two runs in one folder at the same time: the second is refused in one line, or both are right."""
    import lmd
    from faults import work
    from lmd.guarantees import OptimumCache, optimum

    make_small()
    import_everything()
    solver, picture = lmd.zoo.load("denoise-10"), write_picture(Path("in.png"))
    problem = lmd.problems.TVDenoising(work.numbers(1, 1, 8, 8), 0.1)
    kinds: dict[str, Callable[[Path], object]] = {
        "train": lambda folder: train(folder, resume=True),
        "save": lambda folder: lmd.solvers.save(solver, folder),
        "cache": lambda folder: optimum(problem, OptimumCache(folder, limit=4000)),
        "solve": lambda folder: run_command("solve", "denoise", picture, f"{folder}.png", "--overwrite"),
    }
    if not trials.quick:
        kinds["learn"] = lambda folder: learn(folder, resume=True)
        kinds["reproduce"] = lambda folder: run_command("reproduce", "simplex", "--out", str(folder))
    for name, run in kinds.items():
        for number in range(trials.few(3 if name in ("learn", "reproduce") else 10, 2)):
            folder = Path(f"{name.split()[0]}-{number}")
            ends = beside(lambda run=run, folder=folder: run(folder))
            one_line = [ended for ended in ends if ended.code != 0]
            trials.check(len(one_line) < 2 and all(end.one_line for end in one_line), f"{name}: {ends[0]}; {ends[1]}")
            if name in ("train", "learn"):
                again = forked(lambda run=run, folder=folder: run(folder))
                trials.check(again.code == 0, f"{name}, once more: {again}")
            if name == "save":
                loaded = forked(lambda folder=folder: lmd.solvers.load(folder))
                trials.check(loaded.code == 0, f"{name}, what two of them wrote: {loaded}")


def beside(run: Callable[[], object]) -> list[Ended]:
    """The same in two forks at the same time."""
    read, write = os.pipe()
    found: list[Ended] = []

    def both() -> None:
        os.close(read)
        ended = forked(run, 60)
        os.write(write, json.dumps([ended.code, ended.out, ended.err]).encode())

    first = os.fork()
    if first == 0:
        both()
        os._exit(0)
    os.close(write)
    found.append(forked(run, 60))
    os.waitpid(first, 0)
    found.append(Ended(*json.loads(os.read(read, 10**6))))
    os.close(read)
    return found


def write_picture(path: Path, height: int = 24, width: int = 32) -> str:
    """A small picture."""
    from PIL import Image

    from faults import work

    Image.fromarray((work.numbers(height, width) * 255).byte().numpy()).save(path)
    return str(path)


def import_everything() -> None:
    """Do a little of everything in this process, so that its forks have nothing left to import."""
    from faults import work

    make_small()
    work.trained(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        learn(folder / "learned")
        picture = write_picture(folder / "in.png")
        for call in (
            ("solve", "denoise", picture, str(folder / "out.png")),
            ("reproduce", "simplex", "--out", str(folder / "simplex")),
            ("report", str(folder / "simplex")),
        ):
            with contextlib.suppress(SystemExit):
                run_command(*call)


def run_command(*arguments: str) -> None:
    """The command line, in this process."""
    from lmd.cli.program import main

    main(list(arguments))


def damages(content: bytes, count: int, draw: random.Random) -> list[tuple[str, bytes]]:
    """A file that was cut at lengths of every kind, and that has other bits."""
    size = len(content)
    cuts = sorted({0, 1, 7, 8, 9, size // 4, size // 2, size - 9, size - 2, size - 1, *draw.sample(range(size), 4)})
    found = [(f"cut to {cut} of {size} bytes", content[:cut]) for cut in cuts if 0 <= cut < size]
    for number in range(count):
        data = bytearray(content)
        places = draw.sample(range(8 * size), 1 if number % 2 else draw.choice((2, 5)))
        for place in places:
            data[place // 8] ^= 1 << place % 8
        found.append((f"other bits at {[place // 8 for place in places]} of {size} bytes", bytes(data)))
    found += [
        ("zeros", bytes(size)),
        ("doubled", content + content),
        ("empty blocks", content[: size // 2].ljust(size, b"\0")),
    ]
    return found


def damaged(
    trials: Trials,
    source: Path,
    names: list[str],
    use: Callable[[Path], object],
    right: Callable[[Path], Any],
    flips: int,
) -> None:
    """Damage one file of a folder after the other: `use` gives one line, or `right` gives what it gave before."""
    draw, expected = random.Random(0), right(source)
    for name in names:
        for words, content in damages((source / name).read_bytes(), flips, draw):
            folder = Path("damaged")
            shutil.copytree(source, folder)
            (folder / name).write_bytes(content)
            ended = forked(functools.partial(use, folder), 60)
            fine = ended.one_line or (ended.code == 0 and right(folder) == expected)
            trials.check(fine, f"{source}, {name}, {words}: {ended if ended.code else 'silently another answer'}")
            shutil.rmtree(folder)


@case("damaged files", seconds=300)
def damaged_files(trials: Trials) -> None:
    """Solvers, checkpoints and journals that were cut or have other bits are refused, or seen through."""
    import torch

    import lmd

    flips = trials.few(60, 4)

    def loaded(folder: Path) -> None:
        solver = lmd.solvers.load(folder)
        numbers = torch.cat([tensor.double().flatten() for tensor in solver.state_dict().values()])
        (folder / "found").write_text(f"{lmd.core.config.to_config(solver)} {numbers.tolist()}")

    def found(folder: Path) -> str:
        if not (folder / "found").exists():
            forked(lambda: loaded(folder))
        return (folder / "found").read_text()

    lmd.solvers.save(lmd.zoo.load("denoise-7-fast"), "saved", card={"title": "five steps", "numbers": [1.5, 2.25]})
    damaged(trials, Path("saved"), ["solver.json", "weights.safetensors"], loaded, found, flips)
    from faults import work

    half = Path("half")
    work.trained(UPDATES, out=half, callback=lambda line: line["updates"] == UPDATES // 2, **SETTINGS)
    newest = max((half / "checkpoints").iterdir())
    for other in (half / "checkpoints").iterdir():
        if other.stem != newest.stem:
            other.unlink()  # or the run goes on from there, and is right as well
    names = [f"checkpoints/{newest.stem}.{ending}" for ending in ("json", "safetensors")]
    names += ["log.jsonl", "solver.json", "weights.safetensors"]
    whole = Path("went on")
    shutil.copytree(half, whole)
    train(whole, resume=True)
    expected = _trained(whole)
    damaged(
        trials,
        half,
        names,
        lambda folder: train(folder, resume=True),
        lambda f: expected if f == half else _trained(f),
        flips // 3,
    )
    make_small()
    learned = Path("learned")
    learn(learned)
    for path in learned.iterdir():
        if path.name != "learn.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    whole = Path("learned again")
    shutil.copytree(learned, whole)
    learn(whole, resume=True)
    expected = numbers_of(whole)
    few = ["learn.json"]
    damaged(
        trials,
        learned,
        few,
        lambda f: learn(f, resume=True),
        lambda f: expected if f == learned else numbers_of(f),
        flips // 4,
    )


def _trained(folder: Path) -> Any:
    """What a training run has found, with its log, but for what a clock has measured."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return numbers_of(folder), plain
