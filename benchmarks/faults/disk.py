"""Disks that are full, homes that cannot be written, odd names, pipes, and files that vanish."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import FullDisk, Trials, case, command, forked
from faults.runs import family, import_everything, learn, make_small, numbers_of, run_command, train, write_picture


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by what is in it, hidden ones and empty folders included."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def filled(
    trials: Trials,
    name: str,
    run: Callable[[], object],
    prepare: Callable[[], object],
    fine: Callable[[dict[str, bytes]], str],
    *,
    most: int = 1000,
    stride: int = 11,
) -> None:
    """Run with the first write failing, then the second, until none fails; each time once, and from then on.

    After the first `most` it is every `stride`th.

    `prepare` makes the folder `here`, where it runs. `fine` says what is wrong with the files of one that failed.
    """
    disk, top = FullDisk(), Path.cwd()
    for once in (False, True):
        number, strides = 0, 1
        while True:
            number += strides
            folder = top / "here"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            os.chdir(folder)
            prepare()

            def attempt(number: int = number, once: bool = once, folder: Path = folder) -> None:
                disk.fail(folder, number, once=once)
                try:
                    run()
                finally:
                    seen = disk.seen()
                    disk.fail(folder, 0)
                    Path(top / "seen").write_text(str(seen))

            ended = forked(attempt, 120)
            os.chdir(top)
            if int((top / "seen").read_text()) < number:
                trials.check(ended.code == 0, f"{name}, no write failed: {ended}")
                break
            strides = 1 if number < most else stride
            words = f"{name}, write {number} failed{' once' if once else ''}"
            wrong = "" if ended.code == 0 else fine(files_of(folder))
            right = ended.code == 0 or ended.one_line
            trials.check(right and not wrong, f"{words}: {ended}; {wrong}")


def _kept(**before: bytes) -> Callable[[dict[str, bytes]], str]:
    """Whether what was there is there, and nothing else."""

    def fine(found: dict[str, bytes]) -> str:
        lost = [name for name, content in before.items() if found.get(name) != content]
        more = sorted(set(found) - set(before))
        return f"lost {lost}" * bool(lost) + f"left {more}" * bool(more)

    return fine


@case("full disk", seconds=900, preload=True)
def full_disk(trials: Trials) -> None:
    """Every write of commands and functions fails, one after the other; of `learn` and `reproduce` some of them."""
    import lmd
    from faults import work

    make_small()
    if not trials.quick:
        import_everything()
    top, most = Path.cwd(), trials.few(1000, 1)
    picture = write_picture(top / "in.png")
    image = Path(picture).read_bytes()
    work.small()["denoise"]()
    for end in ("png", "jpg", "tif", "npy"):
        call = ("solve", "denoise", "in.png", f"out.{end}", "--overwrite", "--weight", "0.1")
        out = {"in.png": image, f"out.{end}": b"before"}
        filled(
            trials, f"solve .{end}", lambda c=call: run_command(*c), lambda o=out: _write(o), _kept(**out), most=most
        )
        if trials.quick:
            break
    solver, other = lmd.zoo.load("denoise-10"), lmd.zoo.load("denoise-5")
    lmd.solvers.save(other, top / "other")

    def saved(found: dict[str, bytes]) -> str:
        """The old pair, or one whose weights are not those it names, which is refused."""
        left = [name for name in found if name.startswith(".")]
        ended = forked(lambda: _is_one_of(lmd.solvers.load(top / "here"), (solver, other)))
        return f"left {left}" * bool(left) + "" if ended.code in (0, 2) else str(ended)

    filled(
        trials,
        "save",
        lambda: lmd.solvers.save(solver, "."),
        lambda: shutil.copytree(top / "other", ".", dirs_exist_ok=True),
        saved,
        most=most,
    )
    if trials.quick:
        return
    forked(lambda: train(top / "trained"))
    right = numbers_of(top / "trained")

    def goes_on(found: dict[str, bytes]) -> str:
        ended = forked(lambda: train(top / "here/run", resume=True))
        if ended.code != 0:
            return f"does not go on: {ended}"
        return "" if numbers_of(top / "here/run") == right else "goes on to another solver, or left files"

    filled(trials, "train", lambda: train(Path("run")), lambda: None, goes_on)
    resumed = lambda: shutil.copytree(top / "trained", "run")  # noqa: E731
    filled(trials, "train, resumed", lambda: train(Path("run"), resume=True), resumed, goes_on)
    journal = top / "learned"
    forked(lambda: learn(journal))
    expected = numbers_of(journal)

    def half() -> None:
        Path("run").mkdir()
        shutil.copy(journal / "learn.json", "run/learn.json")

    def learned(found: dict[str, bytes]) -> str:
        ended = forked(lambda: learn(top / "here/run", resume=True), 120)
        if ended.code != 0:
            return f"does not go on: {ended}"
        return "" if numbers_of(top / "here/run") == expected else "goes on to another solver, or left files"

    filled(trials, "learn", lambda: learn(Path("run"), resume=True), half, learned, most=4, stride=37)
    forked(lambda: run_command("reproduce", "simplex", "--out", str(top / "before")))
    before = {f"out/{name}": content for name, content in files_of(top / "before").items() if "." in name}

    def reproduced(found: dict[str, bytes]) -> str:
        hidden = [name for name in found if "/." in f"/{name}"]
        read = forked(lambda: run_command("report", str(top / "here/out")))
        return f"left {hidden}" * bool(hidden) + f"{read}" * (read.code != 0)

    copied = lambda: shutil.copytree(top / "before", "out")  # noqa: E731
    filled(
        trials,
        "reproduce",
        lambda: run_command("reproduce", "simplex", "--out", "out"),
        copied,
        reproduced,
        most=4,
        stride=5,
    )
    filled(trials, "report", lambda: run_command("report", "out"), copied, lambda found: _lost(found, before))


def _lost(found: dict[str, bytes], before: dict[str, bytes]) -> str:
    lost = [name for name in before if name not in found or found[name] != before[name]]
    hidden = [name for name in found if "/." in f"/{name}"]
    return f"lost {lost}" * bool(lost) + f"left {hidden}" * bool(hidden)


def _write(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content)


def _is_one_of(found: Any, solvers: tuple[Any, ...]) -> None:
    from faults import work

    assert any(work.same(list(found.state_dict().values()), list(each.state_dict().values())) for each in solvers)


@case("small disk")
def small_disk(trials: Trials) -> None:
    """Files that may have a few kilobytes, and a file system of a few where there is the right to mount one.

    What does not fit is one line, and what was there is there.
    """
    if not trials.quick:
        import_everything()
    _small_files(trials)
    place = Path("small")
    place.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True).returncode == 0
    )
    if not mounted:
        return
    try:
        picture = write_picture(Path("in.png"))
        for end in ("png", "tif", "npy"):
            (place / f"out.{end}").write_bytes(b"before")
            (place / "rest").write_bytes(bytes(64 * 1024 - 3 * 4096))
            ended = command("solve", "denoise", picture, str(place / f"out.{end}"), "--overwrite")
            kept = (place / f"out.{end}").read_bytes() == b"before" or ended.code == 0
            left = [path.name for path in place.iterdir() if path.name.startswith(".")]
            trials.check((ended.one_line or ended.code == 0) and kept and not left, f".{end}: {ended}, left {left}")
            shutil.rmtree(place / "rest", ignore_errors=True)
            (place / "rest").unlink(missing_ok=True)
            (place / f"out.{end}").unlink()
        ended = forked(lambda: train(place / "run"))
        trials.check(ended.one_line or ended.code == 0, f"train: {ended}")
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def _small_files(trials: Trials) -> None:
    """RLIMIT_FSIZE: a write ends in the middle, and the next one fails."""
    picture = write_picture(Path("large.png"), 240, 320)

    def limit(most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    for end in ("png", "jpg", "tif", "npy"):
        for most in (512, 4096, 20_000):
            out = Path(f"out.{end}")
            out.write_bytes(b"before")
            call = ("solve", "denoise", picture, str(out), "--overwrite", "--weight", "0.01")
            ended = command(*call, before=lambda most=most: limit(most))
            left = [path.name for path in Path().iterdir() if path.name.startswith(".")]
            fine = ended.one_line and out.read_bytes() == b"before" and not left
            trials.check(fine, f".{end} of {most} bytes: {ended}, left {left}")
    forked(lambda: train(Path("trained")))
    for most in (512, 1024, 2048):
        folder = Path(f"run-{most}")
        ended = forked(lambda most=most, folder=folder: (limit(most), train(folder)))
        again = forked(lambda folder=folder: train(folder, resume=True))
        same = again.code == 0 and numbers_of(folder) == numbers_of(Path("trained"))
        trials.check((ended.one_line or ended.code == 0) and same, f"train, {most} bytes: {ended}; then {again}")


@case("read-only home")
def read_only_home(trials: Trials) -> None:
    """A home and a cache that are missing, read-only or below a file: everything works without them."""
    Path("file").write_text("in the way")
    picture = write_picture(Path("in.png"))
    homes = [str(Path("missing").absolute()), "/proc/1", str(Path("file/below").absolute()), ""]
    Path("locked").mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", "locked"], capture_output=True).returncode == 0
    )
    if mounted:
        homes.insert(0, str(Path("locked").absolute()))
    calls = [["info"], ["list"], ["data", "list"], ["solve", "denoise", picture, "{}.png"]]
    calls += [["reproduce", "simplex", "--out", "{}"]]
    for number, home in enumerate(homes[: trials.few(9, 1)]):
        environment = {"HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home}
        poor = {**os.environ, **(environment if home else {}), "LMD_CACHE": home}
        for name in (
            "MPLCONFIGDIR",
            "XDG_RUNTIME_DIR",
            *(() if home else environment),
            *(() if number % 2 else ["LMD_CACHE"]),
        ):
            poor.pop(name, None)
        for call in calls[: trials.few(9, 1)]:
            line = [sys.executable, "-m", "lmd", *(word.format(number) for word in call)]
            ended = subprocess.run(line, env=poor, capture_output=True, text=True, timeout=100)
            said = f"exit code {ended.returncode}: {ended.stderr}"
            trials.check(ended.returncode == 0 and not ended.stderr, f"home {home!r}, {' '.join(call[:2])}: {said}")

        def cached(poor: dict[str, str] = poor) -> None:
            import lmd
            from faults import work

            os.environ.clear()
            os.environ.update(poor)
            lmd.guarantees.optimum(
                lmd.problems.TVDenoising(work.numbers(1, 1, 8, 8), 0.1), lmd.guarantees.OptimumCache()
            )

        ended = forked(cached)
        trials.check(ended.code == 0, f"home {home!r}, a cache: {ended}")
    if mounted:
        subprocess.run(["umount", "-l", "locked"], check=True)


NAMES = [
    "a\nb",
    "\udcff\udc80",
    "ü" * 100,
    "-rf",
    "--json",
    " ",
    "%s%n",
    "a\tb",
    "\x1b[31m",
    "*",
    "[x]",
    "\U0001f600",
    "a'b\"c",
]
"""What a file may be called."""


@case("odd names")
def odd_names(trials: Trials) -> None:
    """Files and folders with odd names are read and written, and each error is one line."""
    import lmd
    from faults import work

    if not trials.quick:
        import_everything()
    solver = lmd.zoo.load("denoise-5")
    for number, name in enumerate(NAMES[: trials.few(99, 4)]):
        top = Path(f"place-{number}").absolute() / name
        top.mkdir(parents=True)
        picture, out = top / f"{name}.png", top / f"{name}.out.png"
        write_picture(picture)
        for extra in ([], ["--json", "--overwrite"]):
            ended = command("solve", "denoise", str(picture), str(out), "--weight", "0.1", *extra)
            trials.check(ended.code == 0 and out.is_file() and not ended.err, f"solve {name!r}: {ended}")
        ended = command("solve", "denoise", "--weight", "0.1", "--overwrite", "--", str(top), str(top / "all"))
        trials.check(ended.code == 0 and len(list((top / "all").iterdir())) == 2, f"solve a folder {name!r}: {ended}")
        ended = command("solve", "denoise", str(picture), str(out))
        trials.check(ended.one_line, f"solve {name!r} again: {ended}")
        ended = command("solve", "denoise", str(top / "nothing.png"), str(out))
        trials.check(ended.one_line, f"solve from no file in {name!r}: {ended}")
        lmd.solvers.save(solver, top / "solver")
        trials.check(
            work.same(*(list(s.state_dict().values()) for s in (solver, lmd.solvers.load(top / "solver")))), name
        )
        ended = command("check", str(top / "nowhere"))
        trials.check(ended.one_line, f"check nothing in {name!r}: {ended}")
        first = forked(lambda top=top: train(top / "run"))
        ended = forked(lambda top=top: train(top / "run", resume=True))
        trials.check(first.code == 0 and ended.code == 0, f"train in {name!r}: {first}; {ended}")
        ended = command("report", str(top))
        trials.check(ended.one_line, f"report of nothing in {name!r}: {ended}")
        if number < 3 and not trials.quick:
            made = command("reproduce", "simplex", "--out", str(top / "results"))
            ended = command("report", str(top / "results"))
            trials.check(made.code == 0 and ended.code == 0, f"report of {name!r}: {made}; {ended}")


@case("pipes")
def pipes(trials: Trials) -> None:
    """Outputs that are full, closed, or that nobody reads to the end; pipes in place of files."""
    picture = write_picture(Path("in.png"))
    solve = f"solve denoise {picture} out.png --overwrite --weight 0.1"
    program = f"{sys.executable} -m lmd"
    says_something = ["list", "list --json", solve, "info", "--help", "data list"]
    for call in says_something[: trials.few(9, 2)]:
        ended = _shell(f"{program} {call} > /dev/full")
        fine = ended.returncode == 2 and ended.stderr.count("\n") == 1 and ended.stderr.startswith("lmd: ")
        trials.check(fine, f"{call} > /dev/full: exit code {ended.returncode}: {ended.stderr}")
        ended = _shell(f"set -o pipefail; {program} {call} | head -1 | cat")
        fine = ended.returncode in (0, 141) and not ended.stderr and ended.stdout.count("\n") <= 1
        trials.check(fine, f"{call} | head -1: exit code {ended.returncode}: {ended.stderr}")
        for closed in (">&-", ">&- 2>&-", "> /dev/full 2> /dev/full", "<&-"):
            ended = _shell(f"{program} {call} {closed}")
            fine = ended.returncode in (0, 2) and "Traceback" not in ended.stderr
            trials.check(fine, f"{call} {closed}: exit code {ended.returncode}: {ended.stderr}")
    os.mkfifo("pipe.png")
    for out in ("/dev/full", "/dev/stdout", "/dev/null", "pipe.png", "/dev/fd/1"):
        ended = command("solve", "denoise", picture, out, "--overwrite")
        trials.check(ended.one_line, f"to {out}: {ended}")
    for source in ("pipe.png", "/dev/null", "/dev/zero", "/dev/full", "/dev/stdin"):
        ended = command("solve", "denoise", source, "out2.png", seconds=20)
        trials.check(ended.one_line, f"from {source}: {ended}")
    for call in (["report", "/dev/full"], ["reproduce", "simplex", "--out", "/dev/full"], ["check", "/dev/full"]):
        ended = command(*call, seconds=20)
        trials.check(ended.one_line, f"{' '.join(call)}: {ended}")
    for run in (train, learn):
        ended = forked(lambda run=run: run(Path("/dev/full")))
        trials.check(ended.one_line, f"{run.__name__} in /dev/full: {ended}")


def _shell(line: str) -> Any:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)


@case("vanishing files", seconds=300)
def vanishing(trials: Trials) -> None:
    """Files and folders that are gone in between: one line, or the right answer."""
    import lmd
    import lmd.imaging.files as pictures
    from faults import work

    make_small()
    if not trials.quick:
        import_everything()
    picture = write_picture(Path("in.png"))
    Path("some").mkdir()
    for number in range(3):
        shutil.copy(picture, f"some/{number}.png")

    def before(module: Any, name: str, act: Callable[[], object]) -> Callable[[], None]:
        """Makes a function of a module do something else first."""

        def patch() -> None:
            real = getattr(module, name)
            setattr(module, name, lambda *given, **named: (act(), real(*given, **named))[1])

        return patch

    gone = lambda path: lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)  # noqa: E731
    for step in ("open_picture", "check_out", "write_picture"):
        for what in ("in.png", "place"):
            Path("place").mkdir(exist_ok=True)
            write_picture(Path("in.png"))
            ended = command(
                "solve", "denoise", picture, "place/out.png", "--overwrite", before=before(pictures, step, gone(what))
            )
            trials.check(
                ended.one_line or (ended.code == 0 and Path("place/out.png").is_file()),
                f"{what} before {step}: {ended}",
            )
    for step in ("open_picture", "check_out", "write_picture"):
        for what in ("some", "some/1.png", "all"):
            shutil.rmtree("all", ignore_errors=True)
            for number in range(3):
                Path("some").mkdir(exist_ok=True)
                shutil.copy(
                    "in.png" if Path("in.png").exists() else write_picture(Path("in.png")), f"some/{number}.png"
                )
            ended = command(
                "solve", "denoise", "some", "all", "--weight", "0.1", before=before(pictures, step, gone(what))
            )
            trials.check(
                ended.code in (0, 1, 2) and "Traceback" not in ended.err and "internal" not in ended.err,
                f"{what} before {step} of a folder: {ended}",
            )
    solver = lmd.zoo.load("denoise-5")
    for what in ("run", "run/checkpoints", "run/log.jsonl", "run/solver.json"):
        for late in (4, 12):
            act = gone(what)
            shutil.rmtree("run", ignore_errors=True)
            ended = forked(
                lambda act=act, late=late: train(
                    Path("run"), callback=lambda line: act() if line["updates"] == late else None
                )
            )
            trials.check(ended.code == 0 or ended.one_line, f"{what} at update {late}: {ended}")
            again = forked(lambda: train(Path("run"), resume=True))
            trials.check(again.code == 0 or again.one_line, f"{what} at update {late}, resumed: {again}")
    for word in ("leads with", "settings"):
        for what in ("run", "run/tried", "run/learn.json"):
            shutil.rmtree("run", ignore_errors=True)
            act = gone(what)
            ended = forked(
                lambda act=act, word=word, what=what: learn(
                    Path("run"), progress=lambda line: act() if word in line and Path(what).exists() else None
                )
            )
            trials.check(ended.code == 0 or ended.one_line, f"learn, {what} at {word!r}: {ended}")
            if trials.quick:
                break
    here = Path.cwd()
    work.trained(1)  # PyTorch itself ends a process that first computes in such a folder
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(here / "gone")
    for call in (
        ["solve", "denoise", str(here / "in.png"), "out.png"],
        ["solve", "denoise", "in.png", str(here / "new.png")],
        ["list"],
        ["report", "."],
        ["reproduce", "simplex", "--out", "out"],
    ):
        ended = command(*call)
        trials.check(ended.one_line or ended.code == 0, f"{call[0]} in a folder that is gone: {ended}")
    ended = forked(lambda: lmd.solvers.save(solver, "here"))
    trials.check(ended.one_line, f"save in a folder that is gone: {ended}")
    ended = forked(lambda: work.trained(3, out="here"))
    trials.check(ended.one_line, f"train in a folder that is gone: {ended}")
    ended = forked(lambda: lmd.learn(family(), minutes=1, out="here"))
    trials.check(ended.one_line, f"learn in a folder that is gone: {ended}")
    os.chdir(here)
