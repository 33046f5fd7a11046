"""Add noise to a photograph and remove it with total variation denoising and a certificate.

    minimise  ||x - y||^2 + weight TV(x),   where y is the noisy photograph with colours from 0 to 1

Adds 8% noise to a photograph from scikit-image, writes it to a file and denoises the file, as `lmd solve denoise` does
on the command line. Prints the summary with its certificate and the PSNR of the noisy and the denoised photograph, and
writes all three photographs side by side to `denoise_photo.png`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from skimage.data import chelsea
from skimage.metrics import peak_signal_noise_ratio

from lmd.imaging import solve_file
from lmd.imaging.image_files import Picture, read_picture, write_picture


def main(out: Path) -> None:
    truth = np.moveaxis(chelsea()[20:276, 60:316], -1, 0)
    noise = np.random.default_rng(0).normal(0, 0.08 * 255, truth.shape)
    noisy = Picture((truth + noise).clip(0, 255).round().astype(np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        write_picture(Path(folder, "noisy.png"), noisy)
        print(solve_file("denoise", Path(folder, "noisy.png"), Path(folder, "denoised.png")))
        denoised = read_picture(Path(folder, "denoised.png"))
    for name, picture in (("noisy", noisy), ("denoised", denoised)):
        print(f"{name}: {peak_signal_noise_ratio(truth, picture.colours):.1f} dB")
    write_picture(out, Picture(np.concatenate([truth, noisy.colours, denoised.colours], axis=2)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "denoise_photo.png"))
