"""A second GPU that is not there: tensors on ``cuda:1`` whose memory is that of the CPU.

Everything is computed by the CPU, so a run gives the same bits as on the CPU. What a GPU would not
allow raises: computing with tensors of two devices. What it would wait for is written down: copies
from memory that is not page-locked or to it, and values that the host reads. And so is which stream
has read what. CUDA graphs are those of ``recorder.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from recorder import RecordedGraph
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

DEVICE = torch.device("cuda:1")
_READS = (
    "cpu",
    "item",
    "tolist",
    "numpy",
    "equal",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
)
_BETWEEN_DEVICES = ("copy_", "to", "__set__", "__get__", "_has_compatible_shallow_copy_type")


class OnDevice(Tensor):
    """A tensor that says it is on the device."""

    device = DEVICE  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = getattr(function, "__name__", str(function))
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        strangers = [value for value in given if type(value) is Tensor and value.dim()]
        if strangers and name not in _BETWEEN_DEVICES:
            raise RuntimeError(f"{name}: expected all tensors on one device; {DEVICE} and cpu")
        if name == "numpy":
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use Tensor.cpu()")
        if name == "cpu" or (name == "to" and _asks_for(args, kwargs, "cpu")):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {})).as_subclass(Tensor)
        return super().__torch_function__(function, types, args, kwargs or {})


def _asks_for(args: Any, kwargs: Any, kind: str) -> bool:
    wanted = [*args[1:], *(kwargs or {}).values()]
    wanted = [value.device if isinstance(value, Tensor) else value for value in wanted]
    return any(
        value == kind or (isinstance(value, torch.device) and value.type == kind)
        for value in wanted
        if isinstance(value, str | torch.device)
    )


class Pretended(TorchFunctionMode):
    """Sends what asks for the device there, and counts copies that a GPU would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: dict[int, Tensor] = {}
        self.waited: list[str] = []
        self.graphs: list[RecordedGraph] = []
        self.streams = 0
        self.events: list[torch.device] = []
        self.read: list[tuple[int, Any]] = []
        self.current = 0
        self.stream: Callable[[], int] = lambda: 0

    def _lock(self, tensor: Tensor) -> Tensor:
        self.locked[id(tensor)] = tensor
        return tensor

    def _note_waits(self, name: str, args: Any, kwargs: Any) -> None:
        """Write down what the host would wait for; nothing may be while a graph is captured."""
        waits = name in _READS and isinstance(args[0], OnDevice)
        waits |= name == "to" and isinstance(args[0], OnDevice) and _asks_for(args, kwargs, "cpu")
        if name == "to" and _asks_for(args, kwargs, "cuda"):
            waits |= type(args[0]) is Tensor and id(args[0]) not in self.locked
        if name == "copy_" and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
            host = args[1] if isinstance(args[0], OnDevice) else args[0]
            waits |= id(host) not in self.locked or not kwargs.get("non_blocking")
        if waits:
            self.wait(f"{name} {tuple(args[0].shape)}")

    def wait(self, reason: str) -> None:
        if RecordedGraph.current:
            raise RuntimeError(f"{reason}: the host waits while a graph is captured")
        self.waited.append(reason)

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "pin_memory":
            return self._lock(args[0])
        if kwargs.pop("pin_memory", False):
            return self._lock(function(*args, **kwargs))
        self._note_waits(name, args, kwargs)
        if name == "copy_":
            function(*args, **kwargs)
            return args[0]
        if name == "to" and _asks_for(args, kwargs, "cuda"):
            source = args[0]
            given = [v.dtype if isinstance(v, Tensor) else v for v in (*args[1:], *kwargs.values())]
            kinds = [v for v in given if isinstance(v, torch.dtype)]
            with torch._C.DisableTorchFunctionSubclass():
                moved = source if isinstance(source, OnDevice) else source.clone()
                return (moved.to(*kinds) if kinds else moved).as_subclass(OnDevice)
        if _asks_for((), {"device": kwargs.get("device")}, "cuda"):
            return function(*args, **{**kwargs, "device": "cpu"}).as_subclass(OnDevice)
        return function(*args, **kwargs)


@contextmanager
def second_gpu(monkeypatch: Any) -> Iterator[Pretended]:
    """A process in which ``cuda:1`` can be used."""
    pretended = Pretended()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.timed = enable_timing

        def record(self, stream: Any = None) -> None:
            pretended.events.append(stream.device if stream else torch.device("cuda:0"))

        def elapsed_time(self, other: Event) -> float:
            return 1.0

        def synchronize(self) -> None:
            pretended.wait("an event")

    class Stream:
        def __init__(self, device: torch.device) -> None:
            pretended.streams += 1
            self.device, self.number = device, pretended.streams

        def wait_stream(self, other: Any) -> None:
            """Nothing to do: all work is done at once."""

        def synchronize(self) -> None:
            pretended.wait("a stream")

    @contextmanager
    def on_stream(stream: Stream) -> Iterator[None]:
        before, pretended.stream = pretended.stream, lambda: stream.number
        yield
        pretended.stream = before

    def make_graph() -> RecordedGraph:
        pretended.graphs.append(RecordedGraph())
        return pretended.graphs[-1]

    @contextmanager
    def switched_to(device: torch.device) -> Iterator[None]:
        before, pretended.current = pretended.current, device.index
        yield
        pretended.current = before

    def current_stream(device: torch.device | None = None) -> SimpleNamespace:
        number = pretended.stream()
        wait = functools.partial(pretended.wait, "the current stream")
        return SimpleNamespace(device=device, number=number, synchronize=wait)

    def record_stream(tensor: Tensor, stream: SimpleNamespace) -> None:
        pretended.read.append((tensor.data_ptr(), stream.number))

    monkeypatch.setattr(Tensor, "record_stream", record_stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pretended.current)
    monkeypatch.setattr(torch.cuda, "device", switched_to)
    card = SimpleNamespace(name="A100", major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: pretended.wait("the device"))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", make_graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    capturing = lambda: RecordedGraph.current is not None  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "initial_seed", torch.initial_seed)
    monkeypatch.setattr(torch.cuda, "manual_seed", torch.manual_seed)
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with pretended:
            yield pretended
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
