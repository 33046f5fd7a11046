"""The README's example runs as it stands, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_and_is_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(examples) == 1
    assert len([line for line in examples[0].splitlines() if line.strip()]) <= 10
    exec(compile(examples[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert float(printed[0]) < 1e-8, "the example's comment promises a loss below 1e-8"


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_documented_commands_exist() -> None:
    from lmd.cli import cli

    commands = set(re.findall(r"^lmd ([a-z]+)", README, flags=re.MULTILINE))
    assert commands
    assert commands <= set(cli.commands)
