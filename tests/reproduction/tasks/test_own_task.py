"""examples/own_task.py, installed as a package would be: `lmd list`, `lmd train` and `lmd bench` know it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_task.py"


@pytest.fixture(scope="module")
def lmd(tmp_path_factory: pytest.TempPathFactory):
    """The command line where a package of somebody else's is installed that names the task."""
    site = tmp_path_factory.mktemp("site")
    (site / "own_task.py").write_text(EXAMPLE.read_text(encoding="utf-8"))
    about = site / "own_task-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-task\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lmd.tasks]\nsignals = own_task:TASK\nlost = own_task:NOTHING\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from lmd.cli.program import main; main()", *arguments]
        environment = {**os.environ, "PYTHONPATH": path, "LMD_CACHE": str(site / "cache")}
        environment.pop("LMD_DATA", None)
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site, timeout=300)

    return call


def test_list_knows_it_and_names_the_broken_one(lmd) -> None:
    done = lmd("list", "--json")
    found = json.loads(done.stdout)
    assert {"name": "signals", "title": "total variation of signals", "bench": ["signals"], "solve": False} in found[
        "tasks"
    ]
    assert "signals-10" in {solver["name"] for solver in found["solvers"]}
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("lmd: warning: task lost of own_task:NOTHING left out: ")


def test_train_makes_its_solver(lmd, tmp_path: Path) -> None:
    done = lmd("train", "signals-10", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "run" / "solver.json").read_text())["card"]
    assert card["command"] == "lmd train signals-10 --preset quick --seed 0" and card["data"] == "random signals"
    assert 0 < card["measured"]["relative gap"] < 0.2


def test_bench_compares_on_it(lmd, tmp_path: Path) -> None:
    arguments = ("--quick", "--noise", "5", "--methods", "pdhg,fgp,lmd.solve", "--json", str(tmp_path / "rows.json"))
    done = lmd("bench", "signals", *arguments)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {"pdhg", "fgp", "lmd.solve"}
    assert {row["problem"] for row in rows} == {"signals"}
    assert all(row["value"] > -1e-5 for row in rows if row["metric"] == "relative_gap")
