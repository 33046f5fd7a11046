"""Functions for arrays and for picture files: `lmd.denoise` and `lmd solve`."""

from lmd.imaging.files import Job, PictureSolver, solve_file, solve_many
from lmd.imaging.functions import Info, deblur, denoise, denoise_video, inpaint, reconstruct
from lmd.imaging.noise import estimate_noise

__all__ = [
    "Info",
    "Job",
    "PictureSolver",
    "deblur",
    "denoise",
    "denoise_video",
    "estimate_noise",
    "inpaint",
    "reconstruct",
    "solve_file",
    "solve_many",
]
