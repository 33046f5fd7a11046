"""Plant faults in a copy of the package, one at a time, and see which of them the tests catch.

    python benchmarks/planted.py [--only 3,7] [--whole] [--slow] [--list]

A fault is one line: a snippet that stands exactly once in src/, what it is replaced by, and the tests nearest to it.
These run first; with `--whole` a fault that they pass is held to the whole fast suite, and with `--slow` to all tests.
Faults in C are compiled. The exit code is 1 if fewer than `MIN_CAUGHT` of all faults are caught.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MIN_CAUGHT = 38
SECONDS = 1800
"""How long the tests of one fault may take; a fault that keeps them from ending is caught."""


class Fault(NamedTuple):
    """A line that is replaced."""

    kind: str
    """mathematics, C, files or messages."""

    find: str
    plant: str
    tests: str
    """The nearest tests, as arguments of pytest."""


FAULTS = [
    # mathematics: terms, operators, mirrors, problems
    Fault("mathematics", "double / (double + by)", "double / (double + 2 * by)", "tests/terms"),
    Fault("mathematics", "squares = a.square() + 4 * c", "squares = a.square() + 2 * c", "tests/terms"),
    Fault("mathematics", "evaluation = 64 * torch.finfo", "evaluation = 0 * torch.finfo", "tests/terms"),
    Fault("mathematics", "** 2 / (h * h)\n", "** 2 / h\n", "tests/operators"),
    Fault(
        "mathematics",
        "margins = (w - 1 - w // 2, w // 2, h - 1 - h // 2, h // 2)",
        "margins = (w // 2, w - 1 - w // 2, h - 1 - h // 2, h // 2)",
        "tests/operators",
    ),
    Fault("mathematics", "torch.stack([1 - share, share])", "torch.stack([share, 1 - share])", "tests/operators"),
    Fault("mathematics", "[-1].square()", "[-1]", "tests/mirrors"),
    Fault(
        "mathematics",
        "a.sum(dim=1) - 0.5 * (a @",
        "a.sum(dim=1) - 0.4 * (a @",
        "tests/problems/test_svm.py tests/guarantees",
    ),
    # mathematics: solvers and guarantees
    Fault(
        "mathematics",
        "(1 + 2 * problem.f.strong_convexity",
        "(1 + 4 * problem.f.strong_convexity",
        "tests/solvers/classical",
    ),
    Fault("mathematics", "(1 + (1 + 4 * now**2)", "(1 + (1 + 2 * now**2)", "tests/solvers"),
    Fault(
        "mathematics",
        "curvature / 2 * inner(x - y, x - y)",
        "curvature * inner(x - y, x - y)",
        "tests/solvers/classical",
    ),
    Fault("mathematics", "target = dual - size * sub", "target = dual - 2 * size * sub", "tests/solvers/mirror"),
    Fault(
        "mathematics",
        "relative_gap(torch.fmax",
        "relative_gap(torch.fmin",
        "tests/solvers/test_tolerance.py tests/solvers",
    ),
    Fault("mathematics", "share * (values[k] - error)", "share * (values[k] + error)", "tests/guarantees"),
    Fault("mathematics", "arange(within, runs + 1", "arange(within + 1, runs + 1", "tests/guarantees"),
    Fault("mathematics", "1 / (self.seen * (self.seen + 1))", "1 / self.seen", "tests/guarantees"),
    Fault("mathematics", "range(min(2, state.iteration + 1", "range(min(1, state.iteration + 1", "tests/guarantees"),
    # mathematics: training and imaging
    Fault("mathematics", "self.settings.clip_gradient or math.inf", "math.inf", "tests/training"),
    Fault(
        "mathematics",
        "misfit + 2 * caution[owner]",
        "misfit + caution[owner]",
        "tests/imaging/test_weights.py tests/imaging",
    ),
    Fault("mathematics", "(0.3186 * 2**0.5)", "0.3186", "tests/imaging/test_noise.py tests/imaging"),
    Fault(
        "mathematics",
        "return x.double().round().clamp",
        "return x.double().floor().clamp",
        "tests/imaging/test_arrays.py",
    ),
    # C
    Fault(
        "C",
        "if (uphill < 0) pace->m = 1;",
        "if (uphill > 0) pace->m = 1;",
        "tests/tv tests/kernels tests/solvers/classical",
    ),
    Fault("C", "? tv - sums[1] :", "? 0.9 * (tv - sums[1]) :", "tests/tv tests/zoo"),
    Fault(
        "C",
        "pull = (REAL)(2 * job->scale",
        "pull = (REAL)(job->scale",
        "tests/tv tests/kernels tests/solvers/classical",
    ),
    Fault("C", "sums[1] + (sums[3] > 0 ? sums[3] : 0)", "sums[1]", "tests/tv tests/zoo"),
    Fault(
        "C", "v[k] *= w[k] / (w[k] + soft)", "v[k] *= w[k] / (w[k] + 2 * soft)", "tests/tv tests/kernels tests/problems"
    ),
    Fault("C", "over[k] = 2 * v[k] - p[k]", "over[k] = v[k]", "tests/tv tests/kernels tests/problems"),
    Fault("C", "+= sum[j + left]", "+= sum[j]", "tests/kernels tests/operators"),
    Fault("C", "centring * ratio * ratio * ratio", "centring * ratio", "tests/solvers/learned tests/kernels"),
    # files
    Fault("files", "if _checksum(found) != expected:", "if not expected:", "tests/core tests/solvers/test_saving.py"),
    Fault("files", 'path.name == "metrics.json"', 'path.name != "metrics.json"', "tests/core"),
    Fault("files", "indent=1, allow_nan=False", "indent=1, allow_nan=True", "tests/core"),
    Fault("files", "path.resolve().is_relative_to", "path.absolute().is_relative_to", "tests/core"),
    Fault("files", 'files.sha256(tensors) != state.get("sha256")', "False", "tests/training"),
    Fault(
        "files",
        'files.with_checksum({**state, "sha256": files.sha256(tensors)})',
        '{**state, "sha256": files.sha256(tensors)}',
        "tests/training",
    ),
    Fault(
        "files",
        "os.path.realpath(image) == os.path.realpath(path)",
        "str(image) == str(path)",
        "tests/imaging/test_files.py tests/test_cli.py",
    ),
    # messages
    Fault("messages", "bad.nonzero()[0]", "bad.nonzero()[-1]", "tests/core"),
    Fault("messages", "for one instance use {argument}[None]", "for one instance use {argument}", "tests/core"),
    Fault("messages", 'hint = f" (did you mean', 'hint = "" and f" (did you mean', "tests/core tests/test_cli.py"),
    Fault("messages", "PictureWarning, stacklevel=level", "PictureWarning, stacklevel=1", "tests/imaging"),
]


def copy_tree(into: Path) -> None:
    """Copy what git tracks or would add, and the compiled modules."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.so")]
    for name in filter(None, [*names, *built]):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def place_of(fault: Fault, root: Path) -> Path:
    """The file that has the snippet, once."""
    found = [
        (path, path.read_text(encoding="utf-8").count(fault.find))
        for ending in ("py", "c", "h")
        for path in sorted((root / "src").rglob(f"*.{ending}"))
    ]
    places = [path for path, count in found for _ in range(count)]
    if len(places) != 1:
        raise SystemExit(f"{fault.find!r} stands {len(places)} times in src/, expected once")
    return places[0]


def run(command: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=root, env={**os.environ, **own}, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def caught_by(root: Path, tests: list[str], options: list[str]) -> str | None:
    """The first test that fails, or None."""
    there = [each for each in tests if (root / each.split("::")[0]).exists()]
    call = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *there]
    try:
        ended = run(call, root)
    except subprocess.TimeoutExpired:
        return "tests that do not end"
    if ended.returncode in (0, 5):  # 5: none was selected
        return None
    names = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", ended.stdout, flags=re.MULTILINE)
    return names[0] if names else f"pytest, exit code {ended.returncode}"


def judge(fault: Fault, root: Path, given: argparse.Namespace) -> str | None:
    """What catches the fault: a test that fails with it, and passes without it."""
    path = place_of(fault, root)
    right = path.read_text(encoding="utf-8")
    built = {each: each.read_bytes() for each in (root / "src").rglob("*.so")} if path.suffix != ".py" else {}
    build = [sys.executable, "setup.py", "build_ext", "--inplace", "--force"]
    path.write_text(right.replace(fault.find, fault.plant), encoding="utf-8")
    try:
        if built and run(build, root).returncode:
            raise SystemExit(f"{fault.plant!r} does not compile")
        found = caught_by(root, fault.tests.split(), ["-m", "not slow"])
        if found is None and (given.whole or given.slow):
            found = caught_by(root, ["tests"], ["-n", "2", *([] if given.slow else ["-m", "not slow"])])
    finally:
        path.write_text(right, encoding="utf-8")
        for each, code in built.items():
            each.write_bytes(code)
    if found is not None and "::" in found and caught_by(root, [found], []) is not None:
        print(f"{found} fails without a fault too: mend it first")
        return None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the numbers of faults, such as 3,7")
    parser.add_argument("--whole", action="store_true", help="hold what the nearest tests miss to the fast suite")
    parser.add_argument("--slow", action="store_true", help="and to the slow tests")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--json", type=Path, help="write what was found")
    given = parser.parse_args()
    numbers = range(1, len(FAULTS) + 1) if given.only is None else [int(each) for each in given.only.split(",")]
    found: dict[int, str | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = ROOT if given.list else Path(folder)
        if not given.list:
            copy_tree(root)
        for number in numbers:
            fault = FAULTS[number - 1]
            place = place_of(fault, root).relative_to(root / "src" / "lmd")
            label = f"{number:3} {fault.kind:12}{place}: {' '.join(fault.plant.split())}"
            if given.list:
                print(label)
                continue
            found[number] = judge(fault, root, given)
            print(f"{'caught' if found[number] else 'MISSED'} {label}\n        {found[number] or ''}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))
    caught = sum(each is not None for each in found.values())
    if found:
        print(f"{caught} of {len(found)} caught")
    return int(bool(found) and caught < MIN_CAUGHT - (len(FAULTS) - len(found)))


if __name__ == "__main__":
    sys.exit(main())
