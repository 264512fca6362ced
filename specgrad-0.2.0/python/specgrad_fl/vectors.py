"""A model as one vector, and the vectors that server and clients exchange.

A federated method then is arithmetic on whole vectors, a client's result one copy, and no step
loops over layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from specgrad_fl.errors import RunError


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; on a GPU through page-locked memory, without waiting."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Begin a copy to page-locked memory, whole once its stream is waited for.

    On a CPU it is the tensor itself.
    """
    if tensor.device.type != "cuda":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


class FlatModel:
    """Binds ``model`` to the vectors ``weights`` and ``grads``, float32 of length ``size``.

    Every segment is contiguous in the logical order of its tensor, also where activations are
    ``channels_last``: convolutions lose 2 % by that, and the filter, which reads gradients in
    that order, is six times as fast. Parameters without gradient stay outside.

    >>> flat = FlatModel(nn.Linear(2, 3))
    >>> flat.size, list(flat.segments)
    (9, ['weight', 'bias'])
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.model = model.to(device)
        self._named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.segments: dict[str, slice] = {}
        if not self._named:
            raise RunError("the model has no trainable parameter; check requires_grad")
        self.size = sum(p.numel() for p in self._named.values())
        self.weights = torch.empty(self.size, device=device)
        self.grads = torch.zeros(self.size, device=device)
        start = 0
        for name, parameter in self._named.items():
            if parameter.dtype != torch.get_default_dtype():  # which is float32 but for tests
                raise RunError(
                    f"parameter {name} is {parameter.dtype}; the trainer keeps float32 weights, "
                    "so build the model in float32 and use amp for less"
                )
            self.segments[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
            view = self._view(self.weights, name)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self._view(self.grads, name)
        self._buffers = {
            n: b for n, b in model.named_buffers() if n in model.state_dict(keep_vars=True)
        }
        self.buffer_size = sum(b.numel() for b in self._buffers.values())

    def _view(self, vector: Tensor, name: str) -> Tensor:
        """The segment of ``name`` in its logical shape."""
        return vector[self.segments[name]].view(self._named[name].shape)

    def views(self, stack: Tensor) -> dict[str, Tensor]:
        """The segments of stacked vectors ``[K, d]`` by parameter name, ``[K, *shape]`` each."""
        return {
            name: stack[:, segment].unflatten(1, self._named[name].shape)
            for name, segment in self.segments.items()
        }

    def write_grads(self, loss: Tensor) -> None:
        """Put the gradient of ``loss`` into ``grads``; zero for parameters that it does not use."""
        named = list(self._named.values())
        parts = torch.autograd.grad(loss, named, materialize_grads=True)
        # one copy of all of them; `backward()` would add each to zeros
        torch.cat([part.reshape(-1) for part in parts], out=self.grads)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Copies of the segments of ``vector``, by parameter name."""
        return {name: self._view(vector, name).clone() for name in self.segments}

    def vector(self, named: dict[str, Tensor], prefix: str = "") -> Tensor:
        """The inverse of :meth:`named`, of tensors whose names begin with ``prefix``."""
        vector = torch.empty(self.size)
        for name in self.segments:
            self._view(vector, name).copy_(named[prefix + name])
        return vector

    def read_buffers(self) -> Tensor:
        """All buffers, such as running statistics, as one float64 vector on their device."""
        parts = [b.detach().to(torch.float64).flatten() for b in self._buffers.values()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def write_buffers(self, values: Tensor) -> None:
        """The inverse of :meth:`read_buffers`; whole numbers are rounded to the nearest."""
        there = to_device(values, self.weights.device)
        parts = there.split([buffer.numel() for buffer in self._buffers.values()])
        for buffer, part in zip(self._buffers.values(), parts, strict=True):
            part = part.view(buffer.shape)
            buffer.copy_(part if buffer.dtype.is_floating_point else part.round())


# names, and for each of them dtype and shape, as JSON can carry them
TensorShapes = dict[str, tuple[str, tuple[int, ...]]]


def layout_of(tensors: dict[str, Tensor]) -> TensorShapes:
    return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items()}


def private(layout: TensorShapes) -> dict[str, Tensor]:
    """Zeros for one process."""
    return {n: torch.zeros(shape, dtype=getattr(torch, d)) for n, (d, shape) in layout.items()}


def mapped(layout: TensorShapes, folder: Path) -> dict[str, Tensor]:
    """Tensors in files of ``folder``; every process that maps the same file sees the same values.

    A new file holds zeros and takes no space until it is written.
    """
    tensors = private({name: each for name, each in layout.items() if 0 in each[1]})
    for name, (dtype, shape) in layout.items():
        if name not in tensors:
            path, size = str(folder / f"{name}.bin"), math.prod(shape)
            flat = torch.from_file(path, shared=True, size=size, dtype=getattr(torch, dtype))
            tensors[name] = flat.view(shape)
    return tensors


class SharedVectors:
    """Weights and per-client vectors exchanged between server and workers.

    weights ``[d]``: the server's model; scored ``[d]``: the one to evaluate
    results ``[R, d]``: the clients' models, one row for each active client
    sent: vectors ``[d]`` of the server; states: ``[R, d]``, what active clients keep
    buffers ``[b]``, buffer_results ``[R, b]``: running statistics, empty for most models
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.weights = tensors["weights"]
        self.scored = tensors["scored"]
        self.results = tensors["results"]
        self.buffers = tensors["buffers"]
        self.buffer_results = tensors["buffer_results"]
        self.sent, self.states = (
            {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            for prefix in ("sent-", "state-")
        )

    @staticmethod
    def layout(
        model: FlatModel, rows: int, sent: Iterable[str], states: Iterable[str]
    ) -> TensorShapes:
        """The tensors of a board for ``rows`` active clients."""
        vectors = ("weights", "scored", *(f"sent-{name}" for name in sent))
        stacks = ("results", *(f"state-{name}" for name in states))
        dtype = str(model.weights.dtype).removeprefix("torch.")
        layout: TensorShapes = dict.fromkeys(vectors, (dtype, (model.size,)))
        layout |= dict.fromkeys(stacks, (dtype, (rows, model.size)))
        layout["buffers"] = ("float64", (model.buffer_size,))
        layout["buffer_results"] = ("float64", (rows, model.buffer_size))
        return layout
