"""Copies in float64, of parts within parts."""

from functools import cached_property

import torch

from lmd.core.batching import Part, take_instances, to_double


class Leaf(Part):
    def __init__(self):
        self.x, self.places, self.name = torch.ones(2, requires_grad=True), torch.tensor([1, 0]), "leaf"

    @cached_property
    def third(self):
        return self.x.detach() / 3


class Branch(Part):
    def __init__(self):
        self.leaf, self.leaves, self.sizes = Leaf(), (Leaf(), Leaf()), [1, 2]


def test_tensors_at_every_depth_are_copied_and_the_original_stays():
    branch = Branch()
    copy = to_double(branch)
    for leaf in (copy.leaf, *copy.leaves):
        assert leaf.x.dtype == torch.float64 and not leaf.x.requires_grad
        assert leaf.places.dtype == torch.int64 and leaf.name == "leaf"
    assert copy.sizes is branch.sizes
    assert branch.leaf.x.dtype == branch.leaves[1].x.dtype == torch.float32 and branch.leaf.x.requires_grad


def test_what_was_computed_from_fewer_digits_is_computed_again():
    leaf = Leaf()
    assert leaf.third.dtype == torch.float32
    assert torch.equal(to_double(leaf).third, torch.ones(2, dtype=torch.float64) / 3)


def test_chosen_instances_are_a_batch():
    x = torch.arange(6).reshape(3, 2)
    assert torch.equal(take_instances(x, 1), x[1:2]) and torch.equal(take_instances(x, -1), x[2:])
    assert torch.equal(take_instances(x, slice(1, 3)), x[1:])
    assert torch.equal(take_instances(x, torch.tensor([2, 0])), x[[2, 0]])
    assert torch.equal(take_instances(x, torch.tensor([True, False, True])), x[[0, 2]])
