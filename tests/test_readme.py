"""The README's example runs as it stands, and its links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_example_runs_and_is_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 10
    exec(compile(EXAMPLES[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert float(printed[0]) < 1e-8, "the example's comment promises a loss below 1e-8"


def test_the_second_example_runs_and_is_as_exact_as_it_says() -> None:
    assert len(EXAMPLES) == 2
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[1], "README.md", "exec"), names)
    assert bool((names["result"].certificate.bound >= 0).all())
    exact = names["exact"]
    assert bool((names["problem"].relative_gap(exact.x, exact.dual) <= 1e-4).all())


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_documented_commands_exist() -> None:
    from lmd.cli import cli

    commands = set(re.findall(r"^lmd ([a-z]+)", README, flags=re.MULTILINE))
    assert commands
    assert commands <= set(cli.commands)
