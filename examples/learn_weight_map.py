"""Learn from photographs, end to end, how strongly to denoise each pixel with total variation.

    minimise over the map  mean ||x(y; map) - clean||^2,    x(y; map) = argmin_x ||x - y||^2 + sum_i map_i TV_i(x)

The noise of a simulated camera grows from 2% in the middle to 20% in the corners. `lmd.nn.TVLayer` solves the inner
problem and has its exact derivative with respect to the map, so Adam can learn 8 x 8 weights, which are interpolated to
all pixels. Prints the mean PSNR on test photographs with the best single weight and with the learned map. The map gains
about one dB.
"""

import sys

import torch
from torch import Tensor
from torch.nn.functional import interpolate

import lmd
from lmd.reproduction.datasets import image_data

SIDE = 64


def photographs(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return clean and noisy images `(n, 1, 64, 64)`; clean values are between 0 and 1."""
    clean = images[:, :, 16 : 16 + SIDE, 16 : 16 + SIDE].float().mean(dim=1, keepdim=True) / 255
    at = torch.linspace(-1, 1, SIDE)
    deviation = 0.02 + 0.09 * (at[:, None].square() + at.square())
    return clean, clean + deviation * torch.randn(clean.shape, generator=generator)


def psnr(x: Tensor, clean: Tensor) -> float:
    return float((-10 * (x - clean).square().flatten(1).mean(dim=1).log10()).mean())


def main(updates: int) -> None:
    generator = torch.Generator().manual_seed(0)
    data = image_data("photographs")
    clean, noisy = photographs(data.train_images, generator)
    test_clean, test_noisy = photographs(data.test_images[:24], generator)

    layer = lmd.nn.TVLayer(tolerance=1e-2)
    single = max(psnr(layer(test_noisy, torch.tensor(0.02 * 1.3**k)), test_clean) for k in range(12))

    coarse = torch.full((1, 1, 8, 8), 0.1).log().requires_grad_()
    optimiser = torch.optim.Adam([coarse], lr=0.1)
    for _ in range(updates):
        chosen = torch.randint(len(clean), (8,), generator=generator)
        loss = (layer(noisy[chosen], weights(coarse, 8)) - clean[chosen]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    with torch.no_grad():
        mapped = psnr(layer(test_noisy, weights(coarse, len(test_noisy))), test_clean)
    print(f"noisy: {psnr(test_noisy, test_clean):.2f} dB")
    print(f"best single weight: {single:.2f} dB")
    print(f"learned map: {mapped:.2f} dB")
    print(f"gain: {mapped - single:.2f} dB")


def weights(coarse: Tensor, batch: int) -> Tensor:
    """Return the weights of all pixels `(batch, 1, 64, 64)`, interpolated from the logarithms of 8 x 8 weights."""
    return interpolate(coarse, (SIDE, SIDE), mode="bilinear").exp().expand(batch, -1, -1, -1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
