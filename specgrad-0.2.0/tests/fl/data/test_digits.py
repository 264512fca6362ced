"""Corrupted digits: the form of CIFAR-C without a download."""

from __future__ import annotations

import specgrad_data
import torch


def test_corrupted_digits_are_every_image_under_every_corruption():
    plain, shifted = specgrad_data.load("digits"), specgrad_data.load("digits", corrupted=True)
    kinds = len(shifted.domain_names)
    assert kinds == 5
    assert len(shifted.train_y) == kinds * len(plain.train_y)
    assert len(shifted.test_y) == kinds * len(plain.test_y)
    assert torch.equal(shifted.train_y, plain.train_y.repeat(kinds))
    for domain in range(kinds):
        held = shifted.domains == domain
        assert len(shifted.bases[held].unique()) == len(plain.train_y)
        assert not torch.equal(shifted.train_x[held], plain.train_x)
    assert shifted.fingerprint != plain.fingerprint
