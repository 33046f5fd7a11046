import torch

from lmd.mirrors import OneLayer
from lmd.mirrors.conformance import MirrorConformance


class TestOneLayer(MirrorConformance):
    def make_mirror(self, dtype):
        # The pivots are not in their places, so the LU factors come with a permutation.
        matrix = torch.tensor([[0.1, 1.0, 0.3], [0.2, -0.4, 1.5], [1.2, 0.5, -0.1]], dtype=dtype)
        return OneLayer(3, matrix=matrix, weight=torch.tensor([0.5, 1.0, 2.0], dtype=dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)
