"""A small learned solver and its families, and the two scripts that only make sense outside the test process.

python worker.py kill OUT            one run that is never killed, and one that is killed again and again
torchrun ... worker.py processes OUT   the cases of CASES, shared between processes
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import lmd
from lmd.core.files import write_json, write_tensors
from lmd.mirrors import Mirror
from lmd.problems import Family, LeastSquaresFamily, Problem
from lmd.solvers import LearnedMirrorDescent


class RoughPair(Mirror):
    """Psi(x) = |x|^2/2 + sum softplus(Ax), and an inverse that is learned from scratch."""

    is_exact = False

    def __init__(self, dimension=2, hidden=8, seed=0):
        super().__init__()
        self.dimension, self.hidden, self.seed = dimension, hidden, seed
        generator = torch.Generator().manual_seed(seed)
        self.forwards = nn.Parameter(0.3 * torch.randn(hidden, dimension, generator=generator))
        self.backwards = nn.Parameter(0.3 * torch.randn(hidden, dimension, generator=generator))
        self.never_used = nn.Parameter(torch.ones(1))  # as some weights of the published networks

    def config(self):
        return {"dimension": self.dimension, "hidden": self.hidden, "seed": self.seed}

    def potential(self, x):
        return 0.5 * x.square().sum(dim=1) + functional.softplus(x @ self.forwards.T).sum(dim=1)

    def to_dual(self, x):
        return x + torch.sigmoid(x @ self.forwards.T) @ self.forwards

    def to_primal(self, y, tolerance=None):
        return y - torch.sigmoid(y @ self.backwards.T) @ self.backwards

    @property
    def strong_convexity(self):
        return torch.ones(())


class Bowl(Problem):
    """|x - b|^2 + sum sqrt(1 + x^2), whose subgradient is left to autograd."""

    batched = ("b",)

    def __init__(self, b):
        self.b = b

    def value(self, x):
        return (x - self.b).square().sum(dim=1) + (1 + x.square()).sqrt().sum(dim=1)


class BowlFamily(Family):
    name = "bowl"

    def __init__(self, scale=1.0):
        self.scale = scale

    def sample(self, batch, generator):
        b, x0 = (self.scale * torch.randn(batch, 2, generator=generator) for _ in range(2))
        return Bowl(b), x0


class StartsFamily(Family):
    """One function for all, and random starts: a problem without anything per instance."""

    name = "starts"

    def sample(self, batch, generator):
        return (lambda x: (x - 1).square().sum(dim=1)), torch.randn(batch, 2, generator=generator)


class FaultyFamily(LeastSquaresFamily):
    """Least squares where, in a third of the training batches, the last instance is broken."""

    name = "faulty"

    def sample(self, batch, generator):
        problem, x0 = super().sample(batch, generator)
        if generator.initial_seed() % 6 == 0:  # an even seed is one of training
            x0[-1] = torch.inf
        return problem, x0


def rough_solver(seed=0, iterations=4):
    return LearnedMirrorDescent(RoughPair(seed=seed), iterations, initial_step=0.05)


def exact_solver(iterations=5):
    mirror = lmd.mirrors.Quadratic(2).double()
    return LearnedMirrorDescent(mirror, iterations, initial_step=0.1, interval=(0.05, 0.5)).double()


SETTINGS = {
    "updates": 60,
    "batch": 8,
    "learning_rate": 0.01,
    "schedule": "cosine",
    "checkpoint_every": 7,
    "validate_every": 10,
    "log_every": 3,
    "consistency_growth_every": 20,
}

CASES = {
    "rough": (rough_solver, BowlFamily, {"clip_gradient": 5.0}),
    "recompute": (rough_solver, BowlFamily, {"recompute": True, "consistency_at": "all"}),
    "one function for all": (rough_solver, StartsFamily, {}),
    "faulty": (exact_solver, FaultyFamily, {"max_skipped": 0.9}),
}


def run_case(name, **more):
    make_solver, make_family, settings = CASES[name]
    arguments = {"updates": 20, "batch": 8, "learning_rate": 0.01, "validate_every": 5, "log_every": 1}
    return lmd.train(make_solver(), make_family(), **{**arguments, **settings, **more})


def one_session(out, kill_at_event=None):
    """Train in a child process, which may kill itself at its n-th access to a file of the run; its exit status."""
    child = os.fork()
    if child:
        return child
    events = [0]

    def watch(event, arguments):
        touched = event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir")
        if touched and str(out) in str(arguments[0]):
            events[0] += 1
            if events[0] == kill_at_event:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at_event is not None:
        sys.addaudithook(watch)
    lmd.train(rough_solver(), BowlFamily(), out=out, resume=True, **SETTINGS)
    os._exit(0)


def kill(out):
    """Train in `out/whole` undisturbed, and in `out/killed` with one SIGKILL after another until it is done."""
    torch.set_num_threads(1)
    lmd.train(rough_solver(), BowlFamily(), updates=1)  # what PyTorch loads at first use, once for all the sessions
    _, status = os.waitpid(one_session(out / "whole"), 0)
    assert status == 0
    kills = 0
    for event in [*range(1, 60, 3), *range(60, 360, 30)]:  # files that the run touches, from the first on
        _, status = os.waitpid(one_session(out / "killed", event), 0)
        kills += status == signal.SIGKILL
    chance = random.Random(0)
    for _ in range(6):  # and any moment in between
        child = one_session(out / "killed again")
        time.sleep(chance.uniform(0.0, 0.5))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += status == signal.SIGKILL
    for name in ("killed", "killed again"):
        _, status = os.waitpid(one_session(out / name), 0)
        assert status == 0
    write_json(out / "kills.json", kills)


def processes(out):
    """Each case shared between the processes, in one go and in two, and what they say to what cannot be done."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for name in CASES:
        run_case(name, updates=10, out=out / name)
        result = run_case(name, out=out / name, resume=True)
        write_tensors(out / f"{name}-{rank}.safetensors", result.solver.state_dict())
    said = []
    for broken in ({"batch": 7}, {"out": out / "rough"}):
        try:
            run_case("rough", **broken)
        except lmd.LmdError as error:
            said.append(str(error))
    write_json(out / f"said-{rank}.json", said)


if __name__ == "__main__":
    {"kill": kill, "processes": processes}[sys.argv[1]](Path(sys.argv[2]))
