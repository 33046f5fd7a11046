"""Training under torchrun: two real processes against one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmd.core.files import read_tensors
from lmd.training.train import Processes

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    out = tmp_path_factory.mktemp("processes")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, WORKER, "processes", out], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("name", ["rough", "recompute", "one function for all", "faulty"])
def test_two_processes_reach_the_numbers_of_one(worker, two_processes, name):
    alone = worker.run_case(name)
    for rank in (0, 1):
        shared = read_tensors(two_processes / f"{name}-{rank}.safetensors")
        for key, expected in alone.solver.state_dict().items():
            torch.testing.assert_close(shared[key], expected, rtol=1e-5, atol=1e-7)
    start = worker.CASES[name][0]().state_dict()
    moved = [key for key, before in start.items() if not torch.equal(before, alone.solver.state_dict()[key])]
    assert len(moved) >= 2  # 20 updates have changed the mirror and the steps


@pytest.mark.parametrize("name", ["rough", "faulty"])
def test_the_log_is_written_once_with_the_figures_of_the_whole_batch(worker, two_processes, name):
    lines = [json.loads(line) for line in (two_processes / name / "log.jsonl").read_text().splitlines()]
    alone = worker.run_case(name)
    assert [line["updates"] for line in lines] == [record["updates"] for record in alone.records]
    for line, record in zip(lines, alone.records, strict=True):
        assert line["skipped"] == record["skipped"]
        for figure in ("loss", "gradient_norm", "validation_loss"):
            expected = record.get(figure)
            assert line.get(figure) == (None if expected is None else pytest.approx(expected, rel=1e-4))
    if name == "faulty":
        assert 0 < lines[-1]["skipped"] < 20


def test_what_cannot_be_done_is_said_in_one_line_and_nobody_hangs(two_processes):
    said = [json.loads((two_processes / f"said-{rank}.json").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        assert said[rank][0] == "batch: got 7, expected a multiple of 2, the number of processes"
    assert "which holds a run" in said[0][1]
    assert "main process" in said[1][1]


def test_shares_are_the_batch(worker):
    problem, x0 = worker.BowlFamily().sample(6, torch.Generator().manual_seed(0))
    shares = [Processes(torch.device("cpu"), rank, 3).share(problem, x0) for rank in range(3)]
    assert torch.equal(torch.cat([x for _, x in shares]), x0)
    assert torch.equal(torch.cat([part.b for part, _ in shares]), problem.b)
    assert torch.equal(torch.cat([part.value(x) for part, x in shares]), problem.value(x0))
