"""The README's example runs as it stands, its links lead somewhere, and its tables are those of the measurements."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_one_line_is_enough_and_proves_what_it_says() -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[0], "README.md", "exec"), names)
    assert names["clean"].shape == names["noisy"].shape and names["clean"].dtype == names["noisy"].dtype
    assert names["info"].relative <= 1.001e-3


def test_the_second_example_runs_and_is_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in EXAMPLES[1].splitlines() if line.strip()]) <= 10
    exec(compile(EXAMPLES[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert float(printed[0]) < 1e-8, "the example's comment promises a loss below 1e-8"


def test_the_third_example_runs_and_is_as_exact_as_it_says() -> None:
    assert len(EXAMPLES) == 4
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[2], "README.md", "exec"), names)
    assert bool((names["result"].certificate.bound >= 0).all())
    exact = names["exact"]
    assert bool((names["problem"].relative_gap(exact.x, exact.dual) <= 1e-4).all())


def test_the_fourth_example_runs_and_proves_what_it_says() -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[3], "README.md", "exec"), names)
    result, closer = names["result"], names["closer"]
    for found, tolerance in ((result, 1e-3), (closer, 1e-4)):
        assert bool((found.certificate.bound <= 1.001 * tolerance * found.certificate.lower_bound.abs()).all())


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_documented_commands_exist() -> None:
    from lmd.cli.program import COMMANDS

    commands = set(re.findall(r"^lmd ([a-z]+)", README, flags=re.MULTILINE))
    assert commands
    assert commands <= set(COMMANDS)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """`benchmarks/readme.py`, which writes the tables."""
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "benchmarks" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_what_the_measurements_say(tables: ModuleType) -> None:
    assert tables.written(README) == README, "run python benchmarks/readme.py"
    marked = set(re.findall(r"<!-- measured: (\S+) -->", README))
    assert {path.stem for path in (ROOT / "docs" / "measurements").iterdir()} <= marked


def test_no_number_of_a_benchmark_is_outside_of_them(tables: ModuleType) -> None:
    rest = tables.MARKED.sub("", README)
    assert re.findall(r"\d\s*(?:dB|GB|ms|milliseconds|seconds)\b", rest) == []
    assert "GB" not in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_a_measurement_becomes_a_table(tables: ModuleType, tmp_path: Path) -> None:
    found = {
        "about": "Milliseconds:",
        "columns": ["", "1e-1"],
        "rows": [["ours", 0.5], ["theirs", 123.4], ["none", None]],
    }
    (tmp_path / "times.json").write_text(json.dumps(found))
    before = "a\n<!-- measured: times -->\nold\n<!-- end -->\nb\n<!-- measured: later -->\n<!-- end -->\n"
    after = tables.written(before, tmp_path)
    assert "| | 1e-1 |\n| --- | --- |\n| ours | 0.500 |\n| theirs | 123 |\n| none | - |\n<!-- end -->\nb" in after
    assert "old" not in after and tables.MISSING in after
    assert tables.written(after, tmp_path) == after
