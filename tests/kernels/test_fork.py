"""A fork of a process whose threads have worked has threads that work."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, torch, lmd

torch.set_num_threads(2)
problem = lmd.problems.TVDenoising(torch.rand(1, 3, 160, 160), 0.1)
before = lmd.solve(problem, 1e-3).x
for _ in range(2):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a fork that waits for threads it does not have would wait for ever
        os._exit(0 if torch.equal(lmd.solve(problem, 1e-3).x, before) and torch.get_num_threads() == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
assert torch.equal(lmd.solve(problem, 1e-3).x, before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the threads of GNU's OpenMP, and forks")
def test_a_fork_solves_with_threads():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
