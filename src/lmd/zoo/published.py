"""Convert published checkpoints to solvers: state dicts of the two layouts that the paper's authors released.

Both layouts have `stepsize` and two networks, `fwd_model` and `bwd_model`, with weights `wz`, `wx_lin`, `wx_quad`.
Networks for images end in `final_conv2d` and a mean over the pixels. Dense networks end in a last `wz`; one hidden `wz`
and its `wx` exist but are never used.
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
INTERVAL = (1e-3, 1e-1)  # the interval to which the published step sizes were clipped


def import_checkpoint(path: str | Path) -> LearnedMirrorDescent:
    """Read a published checkpoint without executing code in it, and build its solver."""
    weights = _read(Path(path))
    try:
        return _build(weights)
    except Exception as error:  # other weights than published ones may fail anywhere
        missing = isinstance(error, KeyError)
        reason = f"{error.args[0]} is missing" if missing else f"{' '.join(str(error).split()):.120}"
        raise FileError("checkpoint", f"{path}, which does not fit ({reason})", ACCEPTED) from None


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileError("checkpoint", f"no file {path}", ACCEPTED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says enough
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # damaged pickles may raise any error
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
    prefixes = ("fwd_model.", "bwd_model.")
    networks = [
        {name.removeprefix(each): weight for name, weight in weights.items() if name.startswith(each)}
        for each in prefixes
    ]
    first = networks[0]["wx_lin.0.weight"]
    is_image = first.ndim == 4
    counts = [sum(name.startswith("wx_lin.") and name.endswith(".weight") for name in each) for each in networks]
    depth, backward_depth = (count - 1 if is_image else count - 3 for count in counts)
    width, backward_width = (len(each["wz.0.weight"]) for each in networks)
    options: dict[str, Any] = {"backward_layers": backward_depth, **AS_PUBLISHED}
    mirror: ConvPair | DensePair
    if is_image:
        options |= {"kernel": first.shape[2], "backward_filters": backward_width, "reduction": "mean", "mixing": 0.1}
        mirror = ConvPair(first.shape[1], width, depth, **options)
    else:
        mirror = DensePair(first.shape[1], width, depth, backward_width=backward_width, mixing=0.5, **options)
    _fill(mirror.forward_net, networks[0], is_image)
    _fill(mirror.backward_net, networks[1], is_image)
    sizes = weights["stepsize"].flatten()
    solver = LearnedMirrorDescent(mirror, len(sizes), interval=INTERVAL)
    with torch.no_grad():
        solver.steps.sizes.copy_(sizes)
    solver.steps.constrain_()
    return solver


@torch.no_grad()
def _fill(network: Any, weights: dict[str, Tensor], is_image: bool) -> None:
    """Copy weights with their published names into a network.

    A convolution with circular borders, followed by a mean, needs only the sum of its kernel: one weight per filter.
    """
    depth = len(network.hidden)

    def stacked(kind: str, count: int, part: str = "weight") -> Tensor:
        return torch.stack([weights[f"{kind}.{place}.{part}"] for place in range(count)])

    values = {
        "hidden": stacked("wz", depth) / network.gain,
        "linear": stacked("wx_lin", depth + 1),
        "quadratic": stacked("wx_quad", depth + 1),
        "bias": stacked("wx_lin", depth + 1, "bias"),
    }
    if is_image:
        values["out"] = weights["final_conv2d.weight"].sum(dim=(0, 2, 3)) / network.gain_out
    else:
        values["out"] = weights[f"wz.{depth + 1}.weight"].flatten() / network.gain_out
        values["out_linear"] = weights[f"wx_lin.{depth + 2}.weight"].flatten()
        values["out_quadratic"] = weights[f"wx_quad.{depth + 2}.weight"].flatten()
    for name, value in values.items():
        weight = getattr(network, name)
        if value.shape != weight.shape:
            raise ValueError(f"weights of shape {tuple(value.shape)} where {tuple(weight.shape)} belongs")
        if not bool(torch.isfinite(value).all()):
            raise ValueError("weights that are not finite")
        weight.copy_(value)
    if network.convex and min(float(network.hidden.min()), float(network.out.min())) < 0:
        raise ValueError("negative weights in the forward network, which is not convex then")
