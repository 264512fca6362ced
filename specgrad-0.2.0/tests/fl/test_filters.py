"""The filter of a configuration: its options, and two kinds together."""

from __future__ import annotations

import pytest
import torch
from specgrad_fl import cli
from specgrad_fl.config import Config, read_toml
from specgrad_fl.errors import ConfigError
from specgrad_fl.filters import filter_plan
from specgrad_fl.models import Inputs, build

from specgrad_kernels import select_layers


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = build("resnet8", Inputs(10, 3, 8)).double()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def filtered(model: torch.nn.Module, **settings) -> dict[str, torch.Tensor]:
    """The gradients of the filtered layers, after the filter of these settings."""
    plan = filter_plan(model, Config(**settings))
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    plan.filter_grads_()
    after = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad.copy_(before[name])
        assert name in plan.names or torch.equal(after[name], before[name])
    return {name: after[name] for name in plan.names}


def test_a_pair_is_the_second_filter_of_the_first_ones_result(model):
    pair = filtered(model, filter="lap+fft", ratio=0.1)
    alone = filtered(model, filter="lap", ratio=0.1)
    for name, grad in alone.items():
        model.get_parameter(name).grad.copy_(grad)
    expected = filtered(model, filter="fft", ratio=0.1)
    assert all(torch.equal(pair[name], expected[name]) for name in expected)
    assert any(not torch.allclose(pair[name], alone[name]) for name in expected)


def test_what_the_second_filter_removes_is_spared(model):
    """fft-lap: what lap removes stays, whatever fft does to the rest."""
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    spared = filtered(model, filter="fft-lap", ratio=0.1)
    rest = filtered(model, filter="lap", ratio=0.1)
    for name, grad in rest.items():
        model.get_parameter(name).grad.copy_(grad)
    high = filtered(model, filter="fft", ratio=0.1)
    for name, grad in spared.items():
        torch.testing.assert_close(grad, high[name] + (before[name] - rest[name]))


def test_a_filter_spares_itself(model):
    """Nothing is removed by a filter without its own share: it is a projection."""
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, grad in filtered(model, filter="fft-fft").items():
        torch.testing.assert_close(grad, before[name])


def test_missing_gradients_are_left_out(model):
    name = next(iter(select_layers(model).taken))
    model.get_parameter(name).grad = None
    filter_plan(model, Config(filter="fft-lap")).filter_grads_()
    assert model.get_parameter(name).grad is None


def test_widths_reach_the_filter(model):
    narrow = filtered(model, filter="lap", filter_options={"window": 5, "boundary": "circular"})
    for name, grad in narrow.items():
        flat = model.get_parameter(name).grad.reshape(-1)
        smooth = torch.stack([flat.roll(shift) for shift in range(-2, 3)]).mean(0)
        torch.testing.assert_close(grad.reshape(-1), flat - smooth, rtol=1e-5, atol=1e-6)


def test_an_option_of_one_kind_leaves_the_other_alone(model):
    plan = filter_plan(model, Config(filter="lap+fft", filter_options={"lap.window": 25}))
    assert (plan.first.spec.window, plan.second.spec.window) == (25, None)
    both = filter_plan(model, Config(filter="lap+fft", filter_options={"nonfinite": "raise"}))
    assert (both.first.spec.nonfinite, both.second.spec.nonfinite) == ("raise", "raise")
    alone = filter_plan(model, Config(filter="lap+fft", filter_options={"window": 25}))
    assert (alone.first.spec.window, alone.second.spec.window) == (25, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filter": "ftt"}, "filter is 'ftt'; did you mean 'fft'?"),
        ({"filter": "fft+"}, "filter is 'fft+'; choose one of "),
        ({"filter": "lap+none"}, "filter is 'lap+none'; did you mean 'none'?"),
        ({"filter": "fft+lap-l2"}, "combine two kinds at most"),
        ({"filter": "lap", "filter_options": {"windw": 5}}, "did you mean 'window'?"),
        ({"filter": "lap", "filter_options": {"ratio": 0.5}}, "a filter has no option "),
        ({"filter": "lap", "filter_options": {"fft.seed": 5}}, "the filter is lap"),
        ({"filter": "lap", "filter_options": {"window": 4}}, "window must be a positive odd"),
        ({"filter": "lap+fft", "filter_backend": "loop"}, "loop"),
    ],
)
def test_mistakes_are_named(model, settings, message):
    with pytest.raises(ConfigError) as caught:
        filter_plan(model, Config(**settings))
    assert message in str(caught.value)


def test_options_come_from_file_and_command_line(tmp_path, capsys):
    path = tmp_path / "lap.toml"
    path.write_text('filter = "lap"\n[filter_options.lap]\nwindow = 25\n', encoding="utf-8")
    assert read_toml(path)["filter_options"] == {"lap.window": 25}
    flags = [f"--config={path}", "--filter-option=boundary=reflect", "--rounds=1", "--clients=3"]
    out = tmp_path / "run"
    words = ["train", *flags, "--active=1", "--workers=1", "--quiet", f"--out={out}"]
    assert cli.main(words) == 0
    capsys.readouterr()
    stored = Config(**read_toml(out / "config.toml"))
    assert stored.filter_options == {"lap.window": 25, "boundary": "reflect"}


def test_every_kind_of_the_op_is_offered(capsys):
    from specgrad_kernels.spec import METHODS

    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{kind}," in shown for kind in METHODS)
