"""Every file that a fuzzer kept is read, or refused in one line; `make fuzz` tries the inputs of the C code."""

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
READ = runpy.run_path(str(HERE / "targets.py"))


@pytest.mark.parametrize("name", READ["TARGETS"])
def test_every_kept_input_is_read_or_refused_in_one_line(name, tmp_path) -> None:
    inputs = [bytes.fromhex(line) for line in (HERE / "corpus" / f"{name}.txt").read_text().splitlines()]
    answers = [READ["read_one"](name, content, tmp_path) for content in inputs]
    assert any(not isinstance(answer, Exception) for answer in answers)  # or nothing of the format is reached


def test_every_corpus_belongs_to_something() -> None:
    drivers = {path.stem for path in (HERE.parent / "kernels").glob("sanitize*.c")}
    assert {path.stem for path in (HERE / "corpus").glob("*.txt")} == drivers | set(READ["TARGETS"])
