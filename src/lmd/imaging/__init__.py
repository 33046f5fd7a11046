"""Arrays and picture files in, arrays and picture files out: what `lmd.denoise` and `lmd solve` are made of."""

from lmd.imaging.files import Job, solve_file, solve_many
from lmd.imaging.functions import Info, deblur, denoise, denoise_video, inpaint, reconstruct
from lmd.imaging.noise import NoiseEstimate, estimate_noise
from lmd.imaging.solve import PictureSolver, Summary

__all__ = [
    "Info",
    "Job",
    "NoiseEstimate",
    "PictureSolver",
    "Summary",
    "deblur",
    "denoise",
    "denoise_video",
    "estimate_noise",
    "inpaint",
    "reconstruct",
    "solve_file",
    "solve_many",
]
