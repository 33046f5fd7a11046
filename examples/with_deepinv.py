"""Use our total variation prior in an algorithm of deepinv: proximal gradient descent on a blurred picture.

    minimise  1/2 ||Ax - y||^2 + ths ||Dx||_{1,2}

Each proximal map has a certified relative gap of 1e-4 and starts from the result of the last call. The same loop runs
with deepinv's own prior, and `TVReconstructor` computes the minimum with a certificate. Prints the PSNR, the seconds
and the relative gap of each answer. If a file name is given, draws the answers.

    python examples/with_deepinv.py [FILE.png]
"""

import sys
import time

import torch
from deepinv.optim import L2
from deepinv.optim import TVPrior as TheirPrior
from deepinv.physics import BlurFFT, GaussianNoise
from deepinv.physics.functional.blur import gaussian_blur
from skimage.data import astronaut
from torch import Tensor

from lmd.compat.deepinv import Gap, TVPrior, TVReconstructor

THS, STEPS = 0.002, 20


def descend(prior: TheirPrior, y: Tensor, physics: BlurFFT) -> tuple[Tensor, float]:
    """Run proximal gradient descent with step size 1, since ||A|| = 1; return the answer and the seconds."""
    began, x = time.perf_counter(), physics.A_adjoint(y)
    for _ in range(STEPS):
        x = prior.prox(x - L2().grad(x, y, physics), gamma=THS)
    return x, time.perf_counter() - began


def main(out: str | None = None) -> None:
    truth = torch.from_numpy(astronaut()[20:84, 190:254].copy()).movedim(-1, 0)[None] / 255
    torch.manual_seed(0)
    physics = BlurFFT(truth.shape[1:], gaussian_blur(sigma=(1.5, 1.5)), noise_model=GaussianNoise(0.01))
    y = physics(truth)
    answers = {"blurred": (y, 0.0)}
    for name, prior in (("deepinv's prior", TheirPrior()), ("lmd's prior", TVPrior(1e-4))):
        answers[name] = descend(prior, y, physics)
    began, model = time.perf_counter(), TVReconstructor(THS, tolerance=1e-2)
    answers["the minimum"] = model(y, physics), time.perf_counter() - began
    gap = Gap(THS, tolerance=1e-2)
    for name, (x, seconds) in answers.items():
        psnr = float(-10 * (x - truth).square().mean().log10())
        above = float(gap(x.clamp(0, 1), y=y, physics=physics))
        print(f"{name}: {psnr:.2f} dB, {seconds:.2f} s, at most {above:.1%} above the minimum")
    if out:
        draw({"truth": truth, **{name: x for name, (x, _) in answers.items()}}, out)


def draw(pictures: dict[str, Tensor], out: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(pictures), figsize=(3 * len(pictures), 3.3), layout="constrained")
    for place, (name, picture) in zip(axes, pictures.items(), strict=True):
        place.imshow(picture[0].movedim(0, -1).clamp(0, 1))
        place.set_title(name)
        place.axis("off")
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
