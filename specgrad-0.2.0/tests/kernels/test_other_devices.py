"""Devices without kernels of their own, by a stand-in: plain PyTorch filters where tensors are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_
from specgrad_kernels.backends import choose

SPECS = (
    FilterSpec(),
    FilterSpec("lap", window=5, boundary="reflect"),
    FilterSpec("gaussian", sigma=1.5, boundary="circular"),
    FilterSpec("centralize"),
    FilterSpec("centralize", group_dims=0),
    FilterSpec("spectrum", gains=((0.0, 0.2), (0.5, 1.0))),
    FilterSpec("fft_high"),
    FilterSpec("random", seed=3),
    FilterSpec("l2"),
    FilterSpec("fft2d"),
    FilterSpec(order="1023"),
    FilterSpec(nonfinite="raise"),
)


def stand_in(kind: str) -> type[Tensor]:
    """A tensor that says it is on a device, computes on the CPU, and has no float64, as on MPS."""

    class OnDevice(Tensor):
        device = torch.device(kind, 0)  # type: ignore[assignment]
        is_cpu = False  # type: ignore[assignment]

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            name = getattr(function, "__name__", str(function))
            given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
            strangers = [each for each in given if type(each) is Tensor and each.dim()]
            # an index may stay on the CPU
            if strangers and name not in ("to", "copy_", "__get__", "__getitem__", "__setitem__"):
                raise RuntimeError(f"{name}: expected all tensors on {kind}; one is on the CPU")
            result = super().__torch_function__(function, types, args, kwargs or {})
            for each in tree_flatten(result)[0]:
                if isinstance(each, OnDevice) and each.dtype in (torch.float64, torch.complex128):
                    raise TypeError(f"{name}: {kind} has no float64")
            return result

    return OnDevice


class Placed(TorchFunctionMode):
    """Makes tensors on the stand-in where its device is asked for."""

    def __init__(self, kind: type[Tensor]) -> None:
        super().__init__()
        self.kind = kind

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == self.kind.device:
            kwargs["device"] = "cpu"
            return function(*args, **kwargs).as_subclass(self.kind)
        return function(*args, **kwargs)


def draw() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 3, 3, 3), torch.randn(16, 16, 3, 3)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_plain_pytorch_filters_on_the_device(kind: str, spec: FilterSpec) -> None:
    OnDevice = stand_in(kind)
    grads: list[Any] = [grad.as_subclass(OnDevice) for grad in draw()]
    exact = [grad.double() for grad in draw()]
    layers = [(str(index), torch.nn.Parameter(grad)) for index, grad in enumerate(draw())]
    FilterPlan(layers, spec, backend="torch").filter_grads_(exact)
    with Placed(OnDevice):
        plan = FilterPlan(layers, spec)
        plan.filter_grads_(grads)
    assert choose("auto", spec, OnDevice.device).NAME == "torch"
    for grad, truth in zip(grads, exact, strict=True):
        assert type(grad) is OnDevice
        error = (grad.as_subclass(Tensor).double() - truth).norm()
        assert error <= 1e-5 * truth.norm()


def test_backends_of_other_devices_are_refused_by_name() -> None:
    grads: list[Any] = [torch.randn(99).as_subclass(stand_in("mps"))]
    for backend in ("cpp", "triton"):
        with pytest.raises(RuntimeError, match=f"'{backend}' .* cannot serve: .*mps"):
            filter_grads_(grads, backend=backend)
