"""The learned pair at the published sizes, against a plain reading of the published way: seconds and peak memory.

    python benchmarks/engine.py [--quick] [--threads 2] [--json engine.json]

The published way evaluates each map as autograd of the scalar network with `create_graph=True`; between two iterations
of a solve its graph is dropped. Both ways have the same weights and the same inputs, and what they compute is compared
first. Times are medians of runs that alternate in one process, after a warm-up, so that whatever else the machine does
falls on both; beside them their smallest and largest. Memory is the peak of a fresh process per case, with what the
process held before the work began taken off. A training step is the unrolled loss of N iterations, its derivative and
an update of Adam; ours recomputes each iteration in the backward pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.mirrors import ConvPair
from lmd.mirrors.potentials import PotentialNetwork
from lmd.problems import TVDenoising
from lmd.reproduction.experiments import cost
from lmd.solvers import LearnedMirrorDescent
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings

BATCH, CHANNELS, SIZE, STEP = 4, 3, 96, 0.01
SOLVES, TRAININGS = (2, 5, 10, 20, 50), (2, 5, 10)
WAYS = ("lmd", "published")


# The published way.


class PublishedNet(nn.Module):
    """The scalar network as it is published: circular convolutions, a last one, and the mean over the pixels."""

    def __init__(self, net: PotentialNetwork, outputs: int) -> None:
        super().__init__()
        filters, channels, k = net.width, net.maps.points, net.maps.kernel[0]

        def convolution(inputs: int, out: int, weight: Tensor, bias: Tensor | None = None) -> nn.Conv2d:
            layer = nn.Conv2d(inputs, out, k, padding=k // 2, padding_mode="circular", bias=bias is not None)
            with torch.no_grad():
                layer.weight.copy_(weight)
                if bias is not None and layer.bias is not None:
                    layer.bias.copy_(bias)
            return layer

        every = range(net.layers + 1)
        self.linear = nn.ModuleList(convolution(channels, filters, net.linear[i], net.bias[i]) for i in every)
        self.quadratic = nn.ModuleList(convolution(channels, filters, net.quadratic[i]) for i in every)
        self.hidden = nn.ModuleList(convolution(filters, filters, net.gain * w) for w in net.hidden)
        last = (net.gain_out * net.out)[None, :, None, None].expand(outputs, filters, k, k) / (outputs * k * k)
        self.last = convolution(filters, outputs, last)
        self.mixing, self.convex = net.mixing, net.convex

    def forward(self, x: Tensor) -> Tensor:
        z = functional.leaky_relu(self.linear[0](x) + self.quadratic[0](x) ** 2, 0.2)
        for hidden, linear, quadratic in zip(self.hidden, self.linear[1:], self.quadratic[1:], strict=True):
            z = functional.leaky_relu(hidden(z) + quadratic(x) ** 2 + linear(x), 0.2)
        return self.last(z).mean(dim=(2, 3)).sum(dim=1)

    def map(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(x).sum(), x, create_graph=True)
            return (1 - self.mixing) * gradient + self.mixing * x

    @torch.no_grad()
    def clamp(self) -> None:
        if self.convex:
            for layer in [*self.hidden, self.last]:
                layer.weight.clamp_(min=0)


class PublishedSolver(nn.Module):
    def __init__(self, mirror: ConvPair, iterations: int) -> None:
        super().__init__()
        assert isinstance(mirror.backward_net, PotentialNetwork)
        self.to_dual = PublishedNet(mirror.forward_net, 1)
        self.to_primal = PublishedNet(mirror.backward_net, CHANNELS)
        self.sizes = nn.Parameter(torch.full((iterations,), STEP))

    def step(self, problem: TVDenoising, x: Tensor, k: int) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(problem.value(x).sum(), x, create_graph=True)
        return self.to_primal.map(self.to_dual.map(x) - self.sizes[k] * gradient)

    def loss(self, problem: TVDenoising, x: Tensor) -> Tensor:
        loss = (self.to_primal.map(self.to_dual.map(x)) - x).abs().sum() / len(x)
        for k in range(len(self.sizes)):
            x = self.step(problem, x, k)
            loss = loss + problem.value(x).mean()
        return loss


# The same work, either way.


class Bench:
    """One way at work on one batch of images: `solve` and `train` return what can be compared."""

    def __init__(self, way: str, iterations: int) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(BATCH, CHANNELS, SIZE, SIZE, generator=generator)
        self.problem = TVDenoising(images, 0.3, halved=True)
        self.x0, self.iterations, self.way = images, iterations, way
        mirror = ConvPair.published()
        self.solver: LearnedMirrorDescent | PublishedSolver
        if way == "lmd":
            self.solver = LearnedMirrorDescent(mirror, iterations, STEP)
            settings = TrainingSettings(recompute=True, consistency_at="start")
            self.unrolled = UnrolledLoss(self.solver, settings)
        else:
            self.solver = PublishedSolver(mirror, iterations)
        self.optimiser = torch.optim.Adam(self.solver.parameters(), lr=1e-5, betas=(0.9, 0.99))

    def solve(self) -> Tensor:
        solver = self.solver
        if isinstance(solver, LearnedMirrorDescent):
            with torch.no_grad():
                state = solver.init(self.problem, self.x0)
                for _ in range(self.iterations):
                    state = solver.step(self.problem, state)
            return state.x
        x = self.x0
        for k in range(self.iterations):
            x = solver.step(self.problem, x, k).detach()
        return x

    def derivative(self) -> Tensor:
        """The loss, its derivative left in the parameters."""
        self.optimiser.zero_grad()
        if isinstance(self.solver, LearnedMirrorDescent):
            loss = self.unrolled(self.problem, self.x0, consistency_weight=1.0).loss
        else:
            loss = self.solver.loss(self.problem, self.x0)
        loss.backward()
        return loss.detach()

    def train(self) -> Tensor:
        loss = self.derivative()
        self.optimiser.step()
        for module in self.solver.modules():
            constrain = getattr(module, "constrain_", getattr(module, "clamp", None))
            if callable(constrain):
                constrain()
        return loss

    def work(self, what: str) -> Tensor:
        return self.solve() if what == "solve" else self.train()


def differences() -> dict[str, float]:
    """How far the two ways are apart, relative: points after five iterations, a loss, a derivative."""
    ours, theirs = (Bench(way, 5) for way in WAYS)
    x, y = ours.solve(), theirs.solve()
    found = {"points": float((x - y).norm() / y.norm())}
    ours, theirs = (Bench(way, 2) for way in WAYS)
    a, b = ours.derivative(), theirs.derivative()
    found["loss"] = float((a - b).abs() / b.abs())
    assert isinstance(ours.solver, LearnedMirrorDescent) and isinstance(theirs.solver, PublishedSolver)
    for name, mine, other in (
        ("forward", ours.solver.mirror.forward_net, theirs.solver.to_dual),
        ("backward", ours.solver.mirror.backward_net, theirs.solver.to_primal),
    ):
        kernels = torch.stack([layer.weight.grad for layer in other.hidden])
        found[f"derivative of the {name} weights"] = float(
            (mine.hidden.grad / mine.gain - kernels).norm() / kernels.norm()
        )
    return found


# Measuring.


def timed(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def seconds(what: str, iterations: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of each way, per iteration for a solve and per step for training: median, smallest, largest."""
    benches = {way: Bench(way, iterations) for way in WAYS}
    for bench in benches.values():
        Bench(bench.way, 1).work(what)  # warm-up
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, bench in benches.items():
            found[way].append(timed(lambda bench=bench: bench.work(what)) / (iterations if what == "solve" else 1))
    return {
        way: {"median": statistics.median(times), "smallest": min(times), "largest": max(times)}
        for way, times in found.items()
    }


def peak_memory(what: str, way: str, iterations: int, threads: int) -> dict[str, float]:
    """Megabytes in a fresh process: the peak, and how much of it the work itself needed."""
    return cost.fresh_process(measure_here, what, way, iterations, threads)


def measure_here(what: str, way: str, iterations: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    bench = Bench(way, iterations)
    return cost.peak_memory(lambda: bench.work(what))


def matmul_peak() -> float:
    """The best rate of a large product of float32 matrices, in floating-point operations per second."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / min(timed(lambda: a @ b) for _ in range(10))


def operations_per_iteration() -> float:
    """Multiplications and additions of both maps, one pass forth and one back, for the whole batch."""
    total = 0
    for filters, layers in ((60, 3), (75, 5)):
        inner = layers * filters * filters
        outer = 2 * (layers + 1) * filters * CHANNELS
        total += 2 * 2 * (inner + outer) * 9
    return float(total * SIZE * SIZE * BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything here, too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5, help="of each time, fewer for long runs")
    parser.add_argument("--quick", action="store_true", help="N = 2 and 5 alone")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)

    apart = differences()
    print("relative differences of the two ways:", ", ".join(f"{name} {d:.1e}" for name, d in apart.items()))
    print(f"threads: {chosen.threads}\n")
    rows: list[dict[str, Any]] = []
    peak = matmul_peak()
    print(f"{'':8}{'N':>4}  {'lmd':>24}  {'published':>24}  {'faster':>7}  {'memory':>21}  {'smaller':>8}")
    for what, sizes in (("solve", SOLVES), ("train", TRAININGS)):
        for iterations in [n for n in sizes if n <= 5 or not chosen.quick]:
            repeats = max(1, min(chosen.repeats, 30 // iterations if what == "solve" else 10 // iterations))
            times = seconds(what, iterations, repeats)
            peaks = {way: peak_memory(what, way, iterations, chosen.threads) for way in WAYS}
            for way in WAYS:
                row = {"what": what, "way": way, "iterations": iterations, "repeats": repeats}
                row |= {f"seconds_{name}": value for name, value in times[way].items()}
                row |= {f"megabytes_{name}": value for name, value in peaks[way].items()}
                rows.append(row)
            print(_line(what, iterations, times, peaks), flush=True)
            peak = max(peak, matmul_peak())  # again and again, as the machine may have been busy
    print(f"\nmatrix products: {peak / 1e9:.0f} GFLOP/s; of that, a solve achieves at its fastest:")
    for way in WAYS:
        solves = [row for row in rows if row["way"] == way and row["what"] == "solve"]
        for row in solves:
            row["fraction_of_matmul_peak"] = operations_per_iteration() / row["seconds_smallest"] / peak
        print(f"  {way}: {max(row['fraction_of_matmul_peak'] for row in solves):.2f}")
    if chosen.json:
        machine = {"threads": chosen.threads, "matmul_gflops": peak / 1e9, "torch": torch.__version__}
        chosen.json.write_text(json.dumps({"machine": machine, "differences": apart, "rows": rows}, indent=1) + "\n")


def _line(what: str, iterations: int, times: dict[str, dict[str, float]], peaks: dict[str, dict[str, float]]) -> str:
    def spread(way: str) -> str:
        t = times[way]
        return f"{t['median']:.2f} s ({t['smallest']:.2f} to {t['largest']:.2f})"

    faster = times["published"]["median"] / times["lmd"]["median"]
    smaller = peaks["published"]["peak"] / peaks["lmd"]["peak"]
    megabytes = f"{peaks['lmd']['peak']:.0f} / {peaks['published']['peak']:.0f} MB"
    name = "solve/it" if what == "solve" else "train"
    return (
        f"{name:8}{iterations:>4}  {spread('lmd'):>24}  {spread('published'):>24}  {faster:>6.2f}x"
        f"  {megabytes:>21}  {smaller:>7.1f}x"
    )


if __name__ == "__main__":
    main()
