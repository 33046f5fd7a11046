"""What a certificate is: a proven bound on f(x) - min f, with the theorem and the constants it stands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Constant(NamedTuple):
    """A number that a theorem needs, and where it came from."""

    value: Tensor
    """`()`, or one per instance `(B,)`."""

    origin: str
    """Such as "the mirror's strong convexity", or "given"."""


@dataclass(frozen=True)
class Certificate:
    """A bound on f(x) - min f for each instance, which no true gap exceeds.

    What a theorem proves is a *lower bound* on the minimum; the bound is the value minus that. An instance about which
    nothing is proven has an infinite bound. `lmd.guarantees` makes certificates.
    """

    value: Tensor
    """f(x) `(B,)`."""

    lower_bound: Tensor
    """What no value can be below, `(B,)`; minus infinity where nothing is proven."""

    theorem: str
    """What proves it, in words."""

    norm: str
    """The norm of the statement; dual vectors are measured in its dual norm."""

    constants: Mapping[str, Constant] = field(default_factory=dict)
    """What the theorem needed to know, by name."""

    parts: tuple[Certificate, ...] = ()
    """The certificates this is the best of, instance by instance."""

    @cached_property
    def bound(self) -> Tensor:
        """An upper bound on f(x) - min f, `(B,)`, never negative."""
        return (self.value - self.lower_bound).clamp(min=0)

    @property
    def proven(self) -> Tensor:
        """Which instances `(B,)` have a bound at all."""
        return torch.isfinite(self.bound)

    def explain(self) -> str:
        """One paragraph for a person: the bound, the theorem, the constants and where they came from."""
        proven, bound = self.proven, self.bound
        count, total = int(proven.sum()), len(proven)
        if self.parts:
            best = torch.stack([part.lower_bound for part in self.parts]).argmax(dim=0)[proven]
            said = [
                f"for {shares} of {total} instances: {part.explain()}"
                for part, shares in zip(
                    self.parts, torch.bincount(best, minlength=len(self.parts)).tolist(), strict=True
                )
                if shares
            ]
            return " ".join(said) or f"Nothing is proven: {'; '.join(part.theorem for part in self.parts)}."
        needs = "; ".join(f"{name} = {_numbers(value)} ({origin})" for name, (value, origin) in self.constants.items())
        reason = f"{self.theorem}, in the {self.norm} norm" + (f", with {needs}" if needs else "")
        if not count:
            return f"Nothing is proven by {reason}."
        worst = float(bound[proven].max())
        rest = "" if count == total else f" ({total - count} of {total} instances have no bound)"
        return f"The value exceeds the minimum by at most {worst:.3g}{rest}, by {reason}."


def _numbers(value: Tensor) -> str:
    low, high = float(value.min()), float(value.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
