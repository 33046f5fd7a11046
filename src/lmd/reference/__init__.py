"""Certified optima: what answers are measured against, and the one cache of them."""

from lmd.reference.cache import Cache
from lmd.reference.find import minimiser, minimum, optimum
from lmd.reference.inpainting import smoothest
from lmd.reference.optimum import Optimum

__all__ = ["Cache", "Optimum", "minimiser", "minimum", "optimum", "smoothest"]
