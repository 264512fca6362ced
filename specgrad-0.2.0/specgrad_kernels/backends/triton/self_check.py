"""Check compiled kernels once on the device they run on, and remember on disk that they passed.

Fixed probes of each form that a call uses, aligned and off by one element, are filtered twice,
which must give equal bits, and compared with the equation in float64 on the host. What passed is
kept in Triton's cache folder, by kernel hash, device, driver and versions.
``SPECGRAD_SELF_CHECK=0`` turns the check off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from specgrad_kernels import design
from specgrad_kernels.backends.triton import failures, schedule
from specgrad_kernels.backends.triton.coarse_grid import WIDE_LINE, CoarseGrid
from specgrad_kernels.backends.triton.compiling import Variant
from specgrad_kernels.backends.triton.schedule import Schedule
from specgrad_kernels.backends.triton.signals import Removal, contiguous_signal, removal_of
from specgrad_kernels.kinds import Bins, LocalAverage
from specgrad_kernels.spec import FilterSpec

FOLDER = "specgrad_self_check"
TOLERANCE = 4.0
"""Times the promised error bound: a wrong kernel misses it by orders of magnitude."""

RunSchedule = Callable[[Schedule, Sequence[Sequence[Tensor]]], None]
"""Filters lists of gradients of one dtype in place by a schedule made for each, and waits."""


def enabled(device: torch.device) -> bool:
    """True on a GPU, unless the environment turns the check off."""
    return device.type == "cuda" and os.environ.get("SPECGRAD_SELF_CHECK") != "0"


def check(
    scheduled: Schedule,
    spec: FilterSpec,
    device: torch.device,
    kernels: dict[Variant, Any],
    run: RunSchedule,
) -> None:
    """Filter probes by the kernels of a schedule, unless they passed before on such a device.

    Raises ``KernelFailure`` where they fail.
    """
    dtype = next(iter(kernels)).dtype
    notes = [_note(variant, compiled, device) for variant, compiled in kernels.items()]
    if all(_passed(note) for note in notes):
        return
    with failures.recorded(device, "the self-check of the kernels"):
        for removals in probes(scheduled, spec, dtype):
            _check_probes(removals, spec, dtype, device, run)
    for note in notes:
        _remember(note)


def probes(scheduled: Schedule, spec: FilterSpec, dtype: torch.dtype) -> Iterator[list[Removal]]:
    """Short signals that together use every kernel form, a list for each schedule."""
    double = dtype is torch.float64
    by_strategy: dict[str, list[Removal]] = {}
    for removal in scheduled.removals:
        by_strategy.setdefault(removal.strategy, []).append(removal)
    spreads = [launch.sizes for launch in scheduled.launches if launch.kernel == "spread"]
    forms = [(sizes["HOP"], sizes["WIDTH"]) for sizes in spreads]
    band = by_strategy.get("band", [])
    wide = any(removal.grid.log_rows == WIDE_LINE for removal in band if removal.grid)
    for form in forms:
        members = [own for own in band if own.grid and schedule.form_of(own.grid, forms) == form]
        yield _band_probes(members, wide, double)
    if "means" in by_strategy:
        yield [replace(by_strategy["means"][0], d=576, key=("probe", 576))]
    if "detrend" in by_strategy:
        yield [_detrend_probe(scheduled, by_strategy["detrend"], spec, dtype)]


def _band_probes(members: Sequence[Removal], wide: bool, double: bool) -> list[Removal]:
    """A grid for every length of lines, a circulant and a split one, with the longest cells."""
    grids = [removal.grid for removal in members if removal.grid is not None]
    longest = max(members, key=lambda removal: removal.grid.hop if removal.grid else 0)
    logs = {grid.log_rows for grid in grids} | ({WIDE_LINE} if wide else set())
    # columns, log of the middle, log of the rows; nine columns have a way of their own, and the
    # longest lines have no more columns than it takes to have complex values
    columns_of = {3: 9, 5: 9, 6: 9, WIDE_LINE: 2}
    factors = [(columns_of.get(log, 3), 0, log) for log in sorted(logs - {0})]
    factors += [(3, log, 3) for log in sorted({grid.log_middle for grid in grids} - {0})]
    if 0 in logs:
        factors.append((1, 0, 0))
    assert longest.grid is not None
    assert longest.removed is not None
    window, share = longest.grid.window, len(longest.removed) / longest.d
    found = []
    for columns, log_middle, log_rows in factors:
        cells = 54 if log_rows == 0 else columns << (log_middle + log_rows)
        d = cells * longest.grid.hop
        # three quarters of each bin: all of bin 0 alone would be a mean
        bins = Bins(np.full(max(1, int(share * d)), 0.75))
        grid = CoarseGrid(d, window, columns, log_middle, log_rows, double)
        found.append(Removal(d, ("probe", grid), double, bins, bins.removed, grid))
    return found


def _detrend_probe(
    scheduled: Schedule, members: Sequence[Removal], spec: FilterSpec, dtype: torch.dtype
) -> Removal:
    """A signal of two tiles and a rest, or in one tile where all of them are."""
    sizes = next(each.sizes for each in scheduled.launches if each.kernel == "subtract_smooth")
    shortest = min(members, key=lambda removal: removal.d)
    if not sizes["SAVED"]:
        return shortest
    probe = removal_of(spec, 2 * sizes["TILE"] + 48, shortest.index, dtype is torch.float64)
    wanted = [Variant.from_launch(each, dtype) for each in scheduled.launches]
    built = schedule.build_for(
        [(contiguous_signal(probe.d, 0), probe)], spec.boundary, probe.double
    )
    same = {Variant.from_launch(each, dtype) for each in built.launches} <= set(wanted)
    longer = [removal for removal in members if removal.d > sizes["TILE"]]
    return probe if same else min(longer, key=lambda removal: removal.d)


def _check_probes(
    removals: Sequence[Removal],
    spec: FilterSpec,
    dtype: torch.dtype,
    device: torch.device,
    run: RunSchedule,
) -> None:
    """Filter every probe aligned and off by one, twice, and compare."""
    pairs = [removal for removal in removals for _ in (0, 1)]
    signals = [contiguous_signal(removal.d, index) for index, removal in enumerate(pairs)]
    scheduled = schedule.build_for(
        list(zip(signals, pairs, strict=True)), spec.boundary, dtype is torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    samples = [
        torch.randn(removal.d, generator=generator, dtype=torch.float64, device="cpu")
        .add_(0.25)
        .to(dtype)
        for removal in removals
    ]
    both = [
        [grad for sample in samples for grad in _placed_both_ways(sample, device)] for _ in (0, 1)
    ]
    run(scheduled, both)
    first, second = ([grad.cpu() for grad in grads] for grads in both)
    for place, removal in enumerate(removals):
        exact = samples[place].double()
        norm = float(exact.norm())
        assert removal.wanted is not None
        exact = removal.wanted.equation(exact[None])[0]
        allowed = TOLERANCE * _promised(removal, dtype)
        for index, way in ((2 * place, "aligned"), (2 * place + 1, "off by one element")):
            what = f"{removal.describe()}, {str(dtype).removeprefix('torch.')}, {way}"
            if not torch.equal(first[index], second[index]):
                raise ArithmeticError(f"two runs of one probe differ ({what})")
            error = float((first[index].double() - exact).norm()) / norm
            if not error <= allowed:
                raise ArithmeticError(
                    f"a probe is {error:.1e} from the exact result, {allowed:.1e} is allowed "
                    f"({what})"
                )


def _placed_both_ways(sample: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copy a signal to a device: aligned, and off by one element."""
    aligned = sample.to(device, copy=True)
    return aligned, torch.cat([aligned[:1], aligned])[1:]


def _promised(removal: Removal, dtype: torch.dtype) -> float:
    """Error bound of a probe, relative to its norm, on a GPU that is slow at float64."""
    assert removal.wanted is not None
    if isinstance(removal.wanted, LocalAverage):
        average = removal.wanted
        bound = design.average_rounding(removal.double, average.radius, average.box)
    elif removal.grid is None or removal.strategy == "means":
        bound = design.rounding(removal.double)
    else:
        bound = removal.grid.error(False)
    norm = removal.wanted.norm
    return norm * bound + design.stored_rounding(dtype, norm)


def folder() -> Path:
    """Folder with a note for each kernel that passed."""
    return Path(triton.knobs.cache.dir) / FOLDER


def _note(variant: Variant, compiled: Any, device: torch.device) -> str:
    kernel = {"kernel": variant.kernel, "sizes": variant.label, "dtype": variant.dtype_name}
    return json.dumps(kernel | {"hash": compiled.hash} | failures.versions(device), sort_keys=True)


def _path(note: str) -> Path:
    return folder() / f"{hashlib.sha256(note.encode()).hexdigest()[:32]}.json"


def _passed(note: str) -> bool:
    """True where a note like this is on disk, whole."""
    try:
        return _path(note).read_text(encoding="utf-8") == note
    except (OSError, UnicodeDecodeError):
        return False


def _remember(note: str) -> None:
    """Write a note in one step; a folder that cannot be written costs a check in each process."""
    path = _path(note)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(note, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)


def passed() -> list[dict[str, str]]:
    """Every note on disk that can be read."""
    found = []
    for path in sorted(folder().glob("*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return found
