"""The models that people choose from by words: the misfit, the order of the derivatives, coupled colours, Huber."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_choice, check_positive
from lmd.errors import InputError
from lmd.imaging.noise import Noise, measure, with_minimum_level
from lmd.imaging.weights import LATE, PATH, PIXELS, Choice, by_leaving_out, by_risk, near
from lmd.problems import SecondOrderModel, TVDenoising, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares, Term
from lmd.terms.base import Scale

ORDERS = (1, 2)


class Misfit(NamedTuple):
    """How data y `(B, C, *size)` are held to."""

    term: Callable[[Tensor, Scale], Term]
    """From y and weights of its entries, where it takes them."""

    degree: int
    """Of the misfit in the unit of y: the weight is in units to the power of degree - 1."""

    path: tuple[float, ...]
    """The weights that "auto" tries, in multiples of what `Form.choose` says."""


MISFITS: Mapping[str, Misfit] = {
    "squares": Misfit(lambda y, kept: Squares(y, 1.0, kept), 2, PATH),
    "poisson": Misfit(lambda y, kept: KullbackLeibler(y), 1, (0.12, 0.22, 0.4, 0.72, 1.3)),
    "absolute": Misfit(lambda y, kept: Absolute(y, kept), 1, (0.38, 0.5, 0.66, 0.88, 1.2)),
}
"""By name: ||x - y||^2, the likelihood of Poisson counts, and the sum of |x - y|."""


@dataclass(frozen=True)
class Form:
    """A model by the words that `lmd.denoise` takes, in the units of the data."""

    data: str = "squares"
    order: int = 1
    isotropic: bool = False
    coupled: bool = False
    huber: float = 0.0
    spacing: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_choice("data", self.data, tuple(MISFITS))
        if self.order not in ORDERS or isinstance(self.order, bool):
            raise InputError("order", repr(self.order), "1, or 2 for total generalised variation")
        if check_positive("huber", self.huber, zero=True) and self.order == 2:
            raise InputError("huber", f"{self.huber:g} with order=2", "0: the second order has no staircases to avoid")

    @property
    def degree(self) -> int:
        """Of the model in the unit of the data."""
        return MISFITS[self.data].degree

    @property
    def words(self) -> str:
        """What is special about the model, for a person: words with commas between them, or nothing."""
        found = {
            f"data {self.data}": self.data != "squares",
            f"order {self.order}": self.order != 1,
            "isotropic" if self.isotropic else "anisotropic": True,
            "coupled": self.coupled,
            f"huber {self.huber:g}": self.huber > 0,
        }
        return ", ".join(word for word, holds in found.items() if holds)

    @property
    def centred(self) -> bool:
        """Whether data may be moved by a constant: counts may not, and slopes are held beside the image."""
        return self.data != "poisson" and self.order == 1

    def check(self, argument: str, least: float) -> None:
        """Raise where the misfit is not for numbers down to the `least`."""
        if self.data == "poisson" and not least >= 0:
            raise InputError(argument, f"counts down to {least:g} with data='poisson'", "counts of 0 or more")

    def problem(self, y: Tensor, weight: Tensor, unit: float = 1.0, kept: Scale = 1.0) -> Any:
        """The problems of data y `(B, C, *size)` in multiples of `unit`, as the weights `(B,)`, or a map, are.

        Where `kept` is 0, an entry is lost.
        """
        misfit = MISFITS[self.data]
        more = self.order == 2 or self.coupled or self.huber > 0 or weight.ndim > 1
        if self.data == "squares" and not more and not isinstance(kept, Tensor):
            return TVDenoising(y, weight, self.isotropic, spacing=self.spacing)
        form: dict[str, Any] = {"isotropic": self.isotropic, "coupled": self.coupled, "spacing": self.spacing}
        term, weight = misfit.term(y, kept), weight * unit ** (2 - self.degree)
        if self.order == 2:
            return SecondOrderModel(term, weight, **form)
        return TVModel(term, weight, huber=self.huber / unit, **form)

    def choose(self, y: Tensor, noise: Tensor | None, unit: float = 1.0, counts: float = 1.0) -> Choice:
        """The weights that y show to be best, in multiples of the unit; `counts` is how many counts 1 is.

        Squares: by Stein's risk, near twice the `noise` `(B,)`, which is estimated where it is not given. Counts: by
        the same risk with the counts themselves for their variances, which is unbiased up to the second derivatives of
        the solution ([Luisier, Blu and Unser 2010](https://doi.org/10.1109/TIP.2010.2073477)), near the inverse root
        of their mean. Absolute distances: by pixels that are left out, from where impulses of two pixels go,
        which depends on how many neighbours a pixel has. The second order takes what is best for the first.
        """
        if self.order == 2:
            return replace(self, order=1).choose(y, noise, unit, counts)
        path = y.new_tensor(MISFITS[self.data].path)
        if self.data == "squares":
            found = with_minimum_level(measure(y), y) if noise is None else Noise.white(noise, y)
            return by_risk(self._in(unit), y, found, near(found.level))
        if noise is not None:
            raise InputError("noise", f"a number with data={self.data!r}", "none: only squares go by a deviation")
        if self.data == "poisson":
            mean = (counts * y.flatten(1).mean(dim=1)).clamp(min=1e-3)
            tried = torch.outer(path, mean.rsqrt()) / unit
            return by_risk(self._in(unit), y, (y / counts).sqrt(), tried, least=0.0)
        alone = (1.4 if self.isotropic else 1.0) * 2 / (y.ndim - 2)
        tried = alone / unit * torch.outer(path, y.new_ones(len(y)))

        def model(data: Tensor, weight: Tensor, kept: Tensor) -> Any:
            return self.problem(data, weight, unit, kept)

        return by_leaving_out(
            model, y, torch.ones_like(y), with_minimum_level(measure(y), y).level, tried, 4 * PIXELS, LATE
        )

    def _in(self, unit: float) -> Callable[[Tensor, Tensor], Any]:
        return lambda data, weight: self.problem(data, weight, unit)
