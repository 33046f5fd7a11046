"""Convert published checkpoints to solvers: state dicts of the two layouts that the paper's authors released.

Both hold `stepsize` and two networks, `fwd_model` and `bwd_model`, with weights `wz`, `wx_lin`, `wx_quad`. The networks
for images end in `final_conv2d` and a mean over the pixels; the dense ones end in a last `wz`, and one of their hidden
`wz` and its `wx` are allocated but never used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.errors import FileError
from lmd.mirrors import ConvPair, DensePair
from lmd.solvers import LearnedMirrorDescent

ACCEPTED = "a published state dict for images or for vectors, as torch.save wrote it"
AS_PUBLISHED: dict[str, Any] = {"backward": "gradient", "activation": "leaky", "curvature": False}
INTERVAL = (1e-3, 1e-1)  # what the published step-sizes were clipped to


def import_checkpoint(path: str | Path) -> LearnedMirrorDescent:
    """Read a published checkpoint, without running anything in it, and build the solver it holds."""
    weights = _read(Path(path))
    try:
        solver = _build(weights)
    except KeyError as error:
        reason = f"{error.args[0]} is missing"
        raise FileError("checkpoint", f"{path}, which does not fit ({reason})", ACCEPTED) from None
    except Exception as error:  # weights that nobody published may fail anywhere
        reason = " ".join(str(error).split())
        raise FileError("checkpoint", f"{path}, which does not fit ({reason:.120})", ACCEPTED) from None
    return solver


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileError("checkpoint", f"no file {path}", ACCEPTED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says what there is to say
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # what reads pickles may raise anything on one that is damaged
        raise FileError("checkpoint", f"{path}, which is damaged or holds more than tensors", ACCEPTED) from None
    plain = isinstance(found, Mapping) and all(isinstance(value, Tensor) for value in found.values())
    if not plain or "stepsize" not in found:
        raise FileError("checkpoint", f"{path}, which has another layout", ACCEPTED)
    most = path.stat().st_size
    for name, tensor in found.items():
        whole = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.nbytes <= most
        if not whole or not tensor.dtype.is_floating_point:
            given = f"{path}, whose {name} is {tensor.dtype} of shape {tuple(tensor.shape)}"
            raise FileError("checkpoint", given, "floating-point weights, no larger than the file")
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _build(weights: dict[str, Tensor]) -> LearnedMirrorDescent:
    forward, backward = (_Layers(weights, name) for name in ("fwd_model", "bwd_model"))
    width, backward_width = len(forward["wz", 0]), len(backward["wz", 0])
    mirror: Any
    if forward.is_image:
        mirror = ConvPair(
            forward["wx_lin", 0].shape[1],
            width,
            forward.depth,
            kernel=forward["wx_lin", 0].shape[2],
            backward_filters=backward_width,
            backward_layers=backward.depth,
            reduction="mean",
            mixing=0.1,
            **AS_PUBLISHED,
        )
    else:
        mirror = DensePair(
            forward["wx_lin", 0].shape[1],
            width,
            forward.depth,
            backward_width=backward_width,
            backward_layers=backward.depth,
            mixing=0.5,
            **AS_PUBLISHED,
        )
    _fill(mirror.forward_net, forward)
    _fill(mirror.backward_net, backward)
    sizes = weights["stepsize"].flatten()
    solver = LearnedMirrorDescent(mirror, len(sizes), interval=INTERVAL)
    steps: Any = solver.steps
    with torch.no_grad():
        steps.sizes.copy_(sizes)
    steps.constrain_()
    return solver


class _Layers:
    """The weights of one network by kind and place."""

    def __init__(self, weights: dict[str, Tensor], network: str) -> None:
        self.weights, self.network = weights, network
        linear = [name for name in weights if name.startswith(f"{network}.wx_lin.") and name.endswith(".weight")]
        self.is_image = self["wx_lin", 0].ndim == 4
        self.count = len(linear)
        self.depth = self.count - 1 if self.is_image else self.count - 3

    def __getitem__(self, place: tuple[str, int]) -> Tensor:
        return self.weights[f"{self.network}.{place[0]}.{place[1]}.weight"]

    def stacked(self, kind: str, count: int) -> Tensor:
        return torch.stack([self[kind, place] for place in range(count)])

    @property
    def biases(self) -> Tensor:
        return torch.stack([self.weights[f"{self.network}.wx_lin.{i}.bias"] for i in range(self.depth + 1)])

    @property
    def read_out(self) -> Tensor:
        """One weight per filter: with circular borders a convolution before a mean is the sum of its kernel."""
        if self.is_image:
            return self.weights[f"{self.network}.final_conv2d.weight"].sum(dim=(0, 2, 3))
        return self["wz", self.count - 2].flatten()


@torch.no_grad()
def _fill(network: Any, layers: _Layers) -> None:
    _set(network.hidden, layers.stacked("wz", layers.depth) / network.gain)
    _set(network.out, layers.read_out / network.gain_out)
    _set(network.linear, layers.stacked("wx_lin", layers.depth + 1))
    _set(network.quadratic, layers.stacked("wx_quad", layers.depth + 1))
    _set(network.bias, layers.biases)
    if not layers.is_image:
        _set(network.out_linear, layers["wx_lin", layers.count - 1].flatten())
        _set(network.out_quadratic, layers["wx_quad", layers.count - 1].flatten())
    if network.convex and min(float(network.hidden.min()), float(network.out.min())) < 0:
        raise ValueError("negative weights in the forward network, which is not convex then")


def _set(weight: Tensor, value: Tensor) -> None:
    if value.shape != weight.shape:
        raise ValueError(f"weights of shape {tuple(value.shape)} where {tuple(weight.shape)} belongs")
    if not bool(torch.isfinite(value).all()):
        raise ValueError("weights that are not finite")
    weight.copy_(value)
