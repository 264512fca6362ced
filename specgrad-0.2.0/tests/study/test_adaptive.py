"""Adaptive filters, each by what it reduces to and by closed forms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from specgrad_fl.methods import Federation
from specgrad_study import adaptive
from study.test_variants import CONVOLUTIONS, FLAT, ended, plain

FEDERATION = Federation(torch.ones(2), torch.ones(2, 10), torch.ones(10), FLAT.size, ())


def adapted(name: str, rounds: int = 1, lr: float = 0.1, **options: object) -> torch.Tensor:
    method = f"specgrad_study.adaptive:{name}"
    return ended(rounds, method=method, options=options, lr=lr)


def quadratic(curvatures: dict[str, float], lr: float) -> SimpleNamespace:
    """A client whose loss is a parabola in each layer, of that curvature."""
    draw = torch.Generator().manual_seed(0)
    local = SimpleNamespace(w=torch.randn(FLAT.size, generator=draw), lr=lr, steps=0)
    diagonal = torch.zeros(FLAT.size)
    for name, curvature in curvatures.items():
        diagonal[FLAT.segments[name]] = curvature
    local.g = diagonal * local.w

    def backward() -> torch.Tensor:
        local.g.copy_(diagonal * local.w)
        return local.g.sum()

    local.backward = backward
    local.state = {"damping": torch.zeros(FLAT.size)}
    return local


def test_means_are_damped_to_what_the_learning_rate_follows() -> None:
    sharp, flat = CONVOLUTIONS[1], CONVOLUTIONS[2]
    method = adaptive.Sharpness(adaptive.Sharpness.Options(), FEDERATION)
    local = quadratic({sharp: 80.0, flat: 5.0}, lr=0.1)
    weights, before = local.w.clone(), FLAT.named(local.g.clone())
    method.gradient(local)
    after = FLAT.named(local.g)
    assert local.w.equal(weights)
    for name, factor in ((sharp, 2 / (0.1 * 80)), (flat, 1.0)):
        means, kept = (each[name].flatten(1).mean(1) for each in (before, after))
        torch.testing.assert_close(kept, factor * means, rtol=1e-3, atol=1e-4)


def test_short_steps_are_not_damped() -> None:
    assert adapted("Sharpness", lr=1e-7).equal(ended(lr=1e-7))


def test_clients_that_agree_are_not_filtered_and_noise_is() -> None:
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(1, 20_000, generator=draw, dtype=torch.float64)
    own = torch.randn(10, 20_000, generator=draw, dtype=torch.float64)
    low = torch.fft.rfft(own)
    low[:, 200:] = 0  # only the lowest 2 % of frequencies differ, as strongly as they agree
    gains = adaptive.wiener_gains(common + torch.fft.irfft(low, n=20_000))
    assert gains[-1] == 1.0
    assert gains[0] == pytest.approx(0.5, abs=0.15)  # S / (S + N) with S = N
    assert adaptive.wiener_gains(own).max() == 1.0


def test_gains_of_the_first_round_are_one() -> None:
    torch.testing.assert_close(adapted("Wiener"), plain("none"), rtol=0, atol=1e-5)
    later = adapted("Wiener", rounds=2)
    assert not torch.allclose(later, ended(2), rtol=0, atol=1e-4)


def test_a_ratio_falls_from_its_first_to_its_last_value() -> None:
    fixed = {"first": 0.05, "last": 0.05}
    torch.testing.assert_close(
        adapted("Falling", rounds=2, **fixed), ended(2, filter="fft"), rtol=0, atol=1e-6
    )
    method = adaptive.Falling(adaptive.Falling.Options(first=0.2, last=0.1, rounds=4), FEDERATION)
    assert [method.spec(n).ratio for n in (0, 2, 4, 9)] == pytest.approx([0.2, 0.15, 0.1, 0.1])
