"""A metrics.json is taken as `lmd reproduce` and `lmd bench` write it, and in no other way."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmd.errors import FileError
from lmd.reproduction.page import read_metrics
from lmd.reproduction.tables import row

GOOD: dict[str, Any] = {
    "experiment": "toy",
    "preset": "quick",
    "seed": 0,
    "versions": {"torch": "x"},
    "rows": [row("gd", 0, "loss", 1.0), row("gd", "to gap", "seconds", float("nan"), noise=5)],
}


def read(folder: Path, **changes: object) -> dict[str, Any]:
    (folder / "metrics.json").write_text(json.dumps({**GOOD, **changes}))
    return read_metrics(folder / "metrics.json")


def test_what_may_be_absent_has_a_value(tmp_path: Path) -> None:
    metrics = read(tmp_path)
    assert metrics == {**GOOD, "title": "toy", "paper": "", "seconds": 0, "facts": {}, "figures": []}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("experiment", 3),
        ("title", None),
        ("paper", ["Figure 1"]),
        ("preset", {}),
        ("seed", "0"),
        ("seconds", 10**400),
        ("versions", ["torch"]),
        ("versions", {"torch": {"major": 2}}),
        ("facts", {"steps": [[0.1]]}),
        ("facts", "none"),
        ("figures", {"file": "a", "caption": "b"}),
        ("figures", [{"file": "a"}]),
        ("figures", [{"file": 1, "caption": "b"}]),
        ("rows", {}),
        ("rows", [[]]),
        ("rows", [{"method": "gd", "iteration": 0, "metric": "loss"}]),
        ("rows", [{"method": 1, "iteration": 0, "metric": "loss", "value": 1.0}]),
        ("rows", [{"method": "gd", "iteration": -1, "metric": "loss", "value": 1.0}]),
        ("rows", [{"method": "gd", "iteration": 1.5, "metric": "loss", "value": 1.0}]),
        ("rows", [{"method": "gd", "iteration": True, "metric": "loss", "value": 1.0}]),
        ("rows", [{"method": "gd", "iteration": 0, "metric": "loss", "value": "1"}]),
        ("rows", [{"method": "gd", "iteration": 0, "metric": "loss", "value": 10**400}]),
        ("rows", [{"method": "gd", "iteration": 0, "metric": "loss", "value": 1.0, "noise": [5]}]),
    ],
)
def test_another_type_is_refused_in_one_line(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(FileError, match=rf"^file: got .*metrics\.json, whose {key} is not ") as caught:
        read(tmp_path, **{key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
def test_what_is_no_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(FileError, match=r"metrics\.json, which is no object"):
        read_metrics(tmp_path / "metrics.json")
