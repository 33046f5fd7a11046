"""A problem of your own: robust regression with the Huber loss, and a solver that is learned for it.

    f_i(x) = sum_j h(a_j' x - b_ij),   h(r) = r^2/2 for |r| <= 1, |r| - 1/2 beyond

The features a_j are shared by all instances and badly scaled, so gradient descent crawls. A quadratic mirror, trained
for ten iterations on random targets, learns the scaling. Prints how far above the minimum each method is, on average,
after ten iterations; the minimum itself comes from a long run of Nesterov's method.
"""

import torch

import lmd


class HuberRegression(lmd.problems.Problem):
    """One method is all a problem needs; the subgradient comes from automatic differentiation."""

    batched = ("targets",)

    def __init__(self, features: torch.Tensor, targets: torch.Tensor) -> None:
        self.features, self.targets = features, targets

    def value(self, x: torch.Tensor) -> torch.Tensor:
        residual = x @ self.features.T - self.targets
        return torch.nn.functional.huber_loss(residual, torch.zeros_like(residual), reduction="none").sum(dim=1)


class HuberFamily(lmd.problems.Family):
    """Targets are noisy linear functions of the features, with a few gross errors."""

    name = "huber-regression"

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features

    def sample(self, batch: int, generator: torch.Generator) -> tuple[HuberRegression, torch.Tensor]:
        rows, dimension = self.features.shape
        truth = torch.randn(batch, dimension, generator=generator)
        targets = truth @ self.features.T + 0.1 * torch.randn(batch, rows, generator=generator)
        targets[torch.rand(batch, rows, generator=generator) < 0.05] += 5.0
        return HuberRegression(self.features, targets), torch.zeros(batch, dimension)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.1, 0.3, 1.0, 1.5])
    family = HuberFamily(torch.randn(40, 4, generator=generator) * scales)
    learned = lmd.solvers.LearnedMirrorDescent(
        lmd.mirrors.Quadratic(4), iterations=10, initial_step=0.02, interval=(0.001, 0.5)
    )
    lmd.train(learned, family, updates=400, batch=64, learning_rate=0.03, schedule="cosine")
    problem, x0 = family.sample(500, torch.Generator().manual_seed(1))
    methods = {
        "gradient descent, step 0.01": lmd.solvers.GradientDescent(0.01),
        "Nesterov, step 0.01": lmd.solvers.Nesterov(0.01),
        "learned mirror descent": learned,
    }
    minimum = lmd.run(lmd.solvers.Nesterov(0.005), problem, x0, iterations=3000).values
    for name, solver in methods.items():
        result = lmd.run(solver, problem, x0, iterations=10)
        print(f"{name:30s} {float((result.values - minimum).mean()):.4f}")


if __name__ == "__main__":
    main()
