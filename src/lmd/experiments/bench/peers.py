"""Other people's solvers that the bench compares with: what is installed is measured, what is not is named."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Call = Callable[[int], Any]
"""From a number of iterations to an answer in the peer's own form."""


@dataclass(frozen=True)
class Peer:
    """A solver of another package, called whole for each number of iterations."""

    name: str
    package: str
    """What is imported."""

    problems: tuple[str, ...]
    counts: tuple[int, ...]
    """The numbers of iterations to call it with."""

    prepare: Callable[[Any], Call]
    """From a problem to what is timed: data in the peer's own form is made here, untimed."""

    finish: Callable[[Any, Any], Tensor]
    """From the problem and the answer to x, untimed."""

    hint: str = "pip install 'lmd[bench]'"
    """How to get it."""

    @property
    def installed(self) -> bool:
        """Whether the package can be found, without importing it."""
        return importlib.util.find_spec(self.package) is not None


def _stacked(problem: Any, answers: Any) -> Tensor:
    return torch.as_tensor(np.stack(answers)).to(problem.start())


def _channels_last(problem: Any, answers: Any) -> Tensor:
    return torch.as_tensor(np.stack(answers)).movedim(-1, 1).to(problem.start())


def _bregman(problem: Any) -> Call:
    """It minimises TV(x) + weight / 2 ||x - y||^2, so its weight is 2 over ours; eps = 0 so that it does not stop."""
    from skimage.restoration import denoise_tv_bregman

    images = [image.movedim(0, -1).contiguous().numpy() for image in problem.noisy]
    weights = [2 / float(weight) for weight in problem.weight]

    def call(iterations: int) -> list[Any]:
        options: Any = {"max_num_iter": iterations, "eps": 0, "isotropic": problem.isotropic, "channel_axis": -1}
        return [denoise_tv_bregman(y, weight=w, **options) for y, w in zip(images, weights, strict=True)]

    return call


def _chambolle(problem: Any) -> Call:
    """It minimises ||x - y||^2 / 2 + weight TV(x), isotropic, so its weight is half of ours."""
    from skimage import restoration

    images = [image.movedim(0, -1).contiguous().numpy() for image in problem.noisy]
    weights = [float(weight) / 2 for weight in problem.weight]
    chambolle: Any = restoration.denoise_tv_chambolle

    def call(iterations: int) -> list[Any]:
        options: Any = {"max_num_iter": iterations, "eps": 0, "channel_axis": -1}
        return [chambolle(y, weight=w, **options) for y, w in zip(images, weights, strict=True)]

    return call


def _prox_tv(problem: Any) -> Call:
    """It minimises ||x - y||^2 / 2 + w TV(x) of one channel in double precision, by Douglas-Rachford splitting."""
    import prox_tv

    images = [image.double().numpy() for image in problem.noisy]
    weights = [float(weight) / 2 for weight in problem.weight]
    options: dict[str, Any] = {"method": "dr", "n_threads": torch.get_num_threads()}

    def call(iterations: int) -> list[Any]:
        return [
            np.stack([prox_tv.tv1_2d(channel, w, max_iters=iterations, **options) for channel in image])
            for image, w in zip(images, weights, strict=True)
        ]

    return call


def _deepinv(problem: Any) -> Call:
    """Over-relaxed Chambolle and Pock on ||x - y||^2 / 2 + w TV(x), isotropic; crit = 0 so that it does not stop."""
    from deepinv.models import TVDenoiser

    def call(iterations: int) -> Tensor:
        denoiser = TVDenoiser(tau=0.35, n_it_max=iterations, crit=0.0)
        answer: Tensor = denoiser(problem.noisy, float(problem.weight[0]) / 2)
        return answer

    return call


def _coordinate_descent(problem: Any) -> Call:
    """Its loss is a mean over the rows of A, so its weight is ours over m; tol = 0 so that it does not stop."""
    from sklearn.linear_model import Lasso

    A = np.asfortranarray(problem.A.double().numpy())
    rows = [(b.double().numpy(), float(w) / len(A)) for b, w in zip(problem.b, problem.weight, strict=True)]

    def call(iterations: int) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            options: Any = {"fit_intercept": False, "tol": 0.0, "max_iter": iterations, "copy_X": False}
            return [Lasso(weight, **options).fit(A, b).coef_ for b, weight in rows]

    return call


_COUNTS = (1, 2, 3, 5, 10, 20, 35, 50, 100, 200)

_OWN = "deepinv in an environment of its own, as it wants torchvision"

PEERS: tuple[Peer, ...] = (
    Peer("prox_tv", "prox_tv", ("denoise",), _COUNTS[:8], _prox_tv, _stacked),
    Peer("scikit-image", "skimage", ("denoise",), _COUNTS[3:], _bregman, _channels_last),
    Peer("scikit-image", "skimage", ("denoise-isotropic",), _COUNTS[3:], _chambolle, _channels_last),
    Peer("deepinv", "deepinv", ("denoise-isotropic",), _COUNTS[3:], _deepinv, lambda _, answer: answer, _OWN),
    Peer("scikit-learn", "sklearn", ("lasso",), _COUNTS, _coordinate_descent, _stacked),
)
"""Every peer there is; a new one is a line here."""


@contextmanager
def numpy_errors_as_they_are() -> Iterator[None]:
    """Peers may divide by zero on flat images; that is theirs to handle."""
    with np.errstate(all="ignore"):
        yield
