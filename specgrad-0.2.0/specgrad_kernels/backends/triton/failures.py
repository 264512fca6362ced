"""Failures of compiler, loader, launch or self-check on a device, before a gradient was changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_by_device: dict[torch.device, str] = {}
"""The first failure on each device: its kernels are not tried again in this process."""


class KernelFailure(RuntimeError):
    """The kernels cannot be used on a device; no gradient was changed."""


def versions(device: torch.device) -> dict[str, str]:
    """Device, driver and versions: what a failure and a passed self-check depend on."""
    import triton

    from specgrad_kernels import __version__

    name = torch.cuda.get_device_properties(device).name if device.type == "cuda" else "CPU"
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")
    return {
        "device": name,
        "driver": str(torch.version.hip or (driver() if device.type == "cuda" else "none")),
        "triton": triton.__version__,
        "torch": torch.__version__,
        "specgrad": __version__,
    }


def record(device: torch.device, doing: str, error: BaseException | str) -> KernelFailure:
    """Remember a failure and return the exception to raise."""
    said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    where = ", ".join(f"{name} {value}" for name, value in versions(device).items())
    text = f"{doing} failed on {device} ({where}): {' '.join(said.split())[:600]}"
    _by_device.setdefault(device, text)
    return KernelFailure(_by_device[device])


@contextmanager
def recorded(device: torch.device, doing: str) -> Iterator[None]:
    """Turn exceptions into a recorded failure; a lack of memory is none of the kernels'."""
    try:
        yield
    except (KernelFailure, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a compiler, an assembler or a driver may raise
        raise record(device, doing, error) from error


def reason(device: torch.device) -> str | None:
    """The failure of a device, ``None`` where there was none."""
    return _by_device.get(device)


def raise_if_recorded(device: torch.device) -> None:
    """Raise the failure of a device again."""
    if device in _by_device:
        raise KernelFailure(_by_device[device])


def forget() -> None:
    """Let every device be tried again."""
    _by_device.clear()
