"""Arrays and picture files in, arrays and picture files out: what `lmd.denoise` and `lmd solve` are made of."""

from lmd.pictures.functions import Info, deblur, denoise, denoise_video, inpaint, reconstruct
from lmd.pictures.solve import PictureSolver, Proof, Summary, solve_file

__all__ = [
    "Info",
    "PictureSolver",
    "Proof",
    "Summary",
    "deblur",
    "denoise",
    "denoise_video",
    "inpaint",
    "reconstruct",
    "solve_file",
]
