"""Coverage-guided fuzzing, for so many seconds: libFuzzer on the C entry points, atheris on what reads files.

    python tests/fuzz/run.py SECONDS [--only NAME] [--keep]

C is fuzzed through the drivers of tests/kernels (their choices come from the fuzzer's bytes), with the address and
undefined-behaviour sanitizers; that needs clang. What reads files is in targets.py; that needs atheris. What is missing
is named and left out. A find is printed as a line for its corpus, and the exit code is 1.

A corpus is corpus/NAME.txt: an input a line, in hexadecimal digits. `--keep` adds the inputs that reached
something new.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS = ROOT / "tests" / "kernels"
CORPUS = HERE / "corpus"
LONGEST = {"c": 96, "python": 4096}
"""Bytes of an input."""

TIMEOUT = 30
"""Seconds that one input may take."""

CLANG = ("clang", "-O1", "-g", "-fopenmp", "-mavx2", "-mfma", "-fno-math-errno", "-fno-trapping-math", "-DFUZZER")
CLANG += (
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all",
    f"-I{ROOT / 'src/lmd/kernels'}",
    f"-I{ROOT / 'src/lmd/tv'}",
)
CLANG += ("-Wno-pass-failed",)


def read_corpus(name: str) -> list[bytes]:
    path = CORPUS / f"{name}.txt"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_corpus(name: str, inputs: set[bytes]) -> None:
    CORPUS.mkdir(exist_ok=True)
    ordered = sorted(inputs, key=lambda content: (len(content), content))
    (CORPUS / f"{name}.txt").write_text("".join(f"{content.hex()}\n" for content in ordered))


def commands(folder: Path, part: str) -> dict[str, list[str]]:
    """The programs that can be fuzzed here and have `part` in their names; C is compiled into the folder."""
    found = {}
    if shutil.which("clang"):
        for driver in sorted(KERNELS.glob("sanitize*.c")):
            if part in driver.stem:
                program = str(folder / driver.stem)
                subprocess.run([*CLANG, str(driver), "-o", program, "-lm"], check=True)
                found[driver.stem] = [program, f"-max_len={LONGEST['c']}"]
    else:
        print("fuzz: no clang, so that the C entry points are left out (Debian: clang libclang-rt-14-dev libomp-dev)")
    if importlib.util.find_spec("atheris"):
        sys.path.insert(0, str(HERE))
        from targets import TARGETS

        for name in [name for name in TARGETS if part in name]:
            found[name] = [sys.executable, str(HERE / "targets.py"), name, f"-max_len={LONGEST['python']}"]
    else:
        print("fuzz: no atheris, so that what reads files is left out (pip install atheris)")
    return found


def fuzz(name: str, command: list[str], seconds: int, folder: Path, keep: bool) -> bool:
    """Whether nothing was found."""
    inputs, finds = folder / f"{name}-inputs", folder / f"{name}-finds"
    inputs.mkdir(), finds.mkdir()
    for number, content in enumerate(read_corpus(name)):
        (inputs / f"{number:04d}").write_bytes(content)
    options = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT}", f"-artifact_prefix={finds}/", "-rss_limit_mb=4096"]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "FUZZ_FOLDER": str(folder)}
    done = subprocess.run([*command, *options, str(inputs)], capture_output=True, text=True, env=environment)
    counts = [line for line in done.stderr.splitlines() if line.startswith(("Done", "#"))]
    print(f"{name}: {counts[-1] if counts else f'exit code {done.returncode}'}", flush=True)
    if done.returncode == 0 and keep:
        write_corpus(name, {path.read_bytes() for path in inputs.iterdir()})
    if done.returncode:
        print(done.stderr[-4000:])
    for path in finds.iterdir():
        print(f"find, a line for {CORPUS.relative_to(ROOT) / name}.txt:\n{path.read_bytes().hex()}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=int)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--keep", action="store_true", help="write the corpora anew")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chosen = commands(Path(folder), given.only)
        share = max(1, given.seconds // max(1, len(chosen)))
        clean = [fuzz(name, call, share, Path(folder), given.keep) for name, call in chosen.items()]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
