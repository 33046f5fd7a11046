"""Define your own problem, robust regression with the Huber loss, and learn a solver for it.

    f_i(x) = sum_j h(a_j' x - b_ij),   h(r) = r^2/2 if |r| <= 1, else |r| - 1/2

The features a_j are shared by all instances and badly scaled, so gradient descent is slow. `lmd.learn` finds the
fastest solver for the class. Prints the iterations and milliseconds until 95% of 100 test instances have a relative gap
of 1e-3.
"""

import torch

import lmd


class HuberRegression(lmd.problems.Problem):
    """The only method a problem must have is `value`; the subgradient comes from automatic differentiation."""

    batched = ("targets",)

    def __init__(self, features: torch.Tensor, targets: torch.Tensor) -> None:
        self.features, self.targets = features, targets

    def value(self, x: torch.Tensor) -> torch.Tensor:
        residual = x @ self.features.T - self.targets
        return torch.nn.functional.huber_loss(residual, torch.zeros_like(residual), reduction="none").sum(dim=1)


class HuberFamily(lmd.problems.Family):
    """Targets are noisy linear functions of the features, with a few gross errors."""

    features = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.1, 0.3, 1.0, 1.5])

    def sample(self, batch: int, generator: torch.Generator) -> tuple[HuberRegression, torch.Tensor]:
        truth = torch.randn(batch, 4, generator=generator)
        targets = truth @ self.features.T + 0.1 * torch.randn(batch, 40, generator=generator)
        targets[torch.rand(batch, 40, generator=generator) < 0.05] += 5.0
        return HuberRegression(self.features, targets), torch.zeros(batch, 4)


if __name__ == "__main__":
    solver = lmd.learn(HuberFamily(), minutes=1)
    for row in solver.card["rows"]:
        if "0.001" in row["iterations"]:
            print(f"{row['method']:50s} {row['iterations']['0.001']:4d} {row['milliseconds']['0.001']:6.2f} ms")
