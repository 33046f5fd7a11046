"""Define your own term and test it: the pinball loss, for the 80% quantile of a piecewise constant signal.

Prints how far PDHG and a solver trained on such problems are above a proven lower bound after 20 iterations.
"""

import torch

import lmd
from lmd.terms.base import clip, per_instance, size_of, sum_instances
from lmd.testing.terms import TermConformance


class Pinball(lmd.terms.Term):
    """h(d) = sum max(0.2 d, -0.8 d); h*(p) = 0 if -0.8 <= p <= 0.2."""

    low, high = -0.8, 0.2

    def value(self, d):
        return sum_instances(torch.maximum(self.high * d, self.low * d))

    def prox(self, d, step):
        return d - clip(d, *(end * per_instance(step, d) for end in (self.low, self.high)))

    def conjugate(self, p):
        return p.new_zeros(len(p))

    def project(self, p):
        return p.clamp(self.low, self.high)

    def residual(self, d, p):  # both factors have the same sign, so nothing cancels
        return sum_instances(torch.where(d > 0, d * (self.high - p), d * (self.low - p)))

    def rounding(self, d, p, d_error, p_error, residual):
        size, root, eps = size_of(d), d[0].numel() ** 0.5, torch.finfo(d.dtype).eps
        return eps * (8 * root * size + (root**2 + 8) * residual) + size * p_error + 2 * root * d_error

    def gauge(self, u):
        return torch.maximum(u / self.high, u / self.low).flatten(1).amax(dim=1)


class TestPinball(TermConformance):
    make_term = staticmethod(lambda batch, dtype, generator: Pinball())
    points = staticmethod(lambda term, batch, dtype, generator: torch.randn(batch, 7, generator=generator).to(dtype))


class Quantiles(lmd.problems.Family):
    def sample(self, batch, generator):
        y = torch.randn(batch, 4, generator=generator).repeat_interleave(10, dim=1)
        y = y + torch.randn(batch, 40, generator=generator).exp() / 3
        behind = (lmd.terms.L1(2.0), lmd.operators.Differences((40,)))
        return lmd.problems.Composite(lmd.terms.Shifted(Pinball(), y), behind, start=y), y


if __name__ == "__main__":
    (problem, x0), learned = Quantiles().sample(20, torch.Generator().manual_seed(1)), lmd.solvers.LearnedPDHG(20)
    lmd.train(learned, Quantiles(), updates=150, learning_rate=0.03, schedule="cosine", value_weights="last")
    least = lmd.solve(problem, tolerance=1e-3).certificate.lower_bound
    for solver in (lmd.solvers.PDHG(), learned):
        excess = lmd.run(solver, problem, x0, iterations=20).values / least - 1
        print(f"{type(solver).__name__:12s} {float(excess.mean()):.4f}")
