"""Mirror descent as a PyTorch optimiser, with a mirror for each parameter group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmd.core.checks import check_positive
from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.closed_form import Euclidean


class MirrorDescent(Optimizer):
    r"""Iterate x <- to_primal(to_dual(x) - lr g) for each parameter x, where g is the gradient of the loss.

    Mirror descent ([Beck and Teboulle 2003](https://doi.org/10.1016/S0167-6377(02)00231-6)) with
    `lmd.mirrors.Entropic` is the exponentiated gradient method on the simplex; with `Euclidean`, the default, it is
    gradient descent. Each parameter group can have its own `mirror` and `lr`, and schedulers can change `lr`.

    A parameter with two or more axes is a batch of points along its first axis: with an entropic mirror each row is a
    distribution. A parameter with fewer axes is a single point. Parameters must lie in the domain of their mirror when
    they are added.

    The method has no state, so `state_dict` holds only the settings of the groups. It does not contain the mirrors,
    which are modules that you save separately. Loading keeps the mirrors of this optimiser.

    Args:
        params: Parameters or parameter groups, as for every PyTorch optimiser.
        lr: The step size.
        mirror: Any mirror; None is `Euclidean`.

    >>> import lmd, torch
    >>> weights = torch.nn.Parameter(torch.full((3,), 1 / 3))
    >>> optimiser = lmd.optim.MirrorDescent([weights], lr=1.0, mirror=lmd.mirrors.Entropic())
    >>> (weights @ torch.tensor([0.0, 1.0, 2.0])).backward()
    >>> optimiser.step()
    >>> [round(each, 4) for each in weights.tolist()]
    [0.6652, 0.2447, 0.09]
    """

    def __init__(self, params: Any, lr: float = 1e-2, mirror: Mirror | None = None) -> None:
        super().__init__(params, {"lr": lr, "mirror": Euclidean() if mirror is None else mirror})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        check_positive("lr", float(added["lr"]))
        if not isinstance(added["mirror"], Mirror):
            raise InputError("mirror", type(added["mirror"]).__name__, "an lmd.mirrors.Mirror")
        for parameter in added["params"]:
            added["mirror"].check("params", _points(parameter.detach()))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; return the loss from `closure` if it is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    change = group["lr"] * _points(parameter.grad)
                    parameter.copy_(group["mirror"].descend(_points(parameter), change).view_as(parameter))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the settings of the groups, without their mirrors."""
        found = super().state_dict()
        for group in found["param_groups"]:
            del group["mirror"]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings; keep the mirrors of this optimiser."""
        mirrors = [group["mirror"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, mirror in zip(self.param_groups, mirrors, strict=True):
            group["mirror"] = mirror


def _points(parameter: Tensor) -> Tensor:
    """Return a parameter as a batch of points `(B, ...)`."""
    return parameter if parameter.ndim > 1 else parameter.reshape(1, -1)
