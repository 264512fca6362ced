"""All samples in memory, on the device, and batches by index.

Images stay ``uint8`` in the order ``[N, H, W, C]``; a batch is one gather that flips, shifts and
pads through its indices, and comes out as floats in ``channels_last`` order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from specgrad_data import Dataset
from torch import Tensor

ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True)
class Format:
    """Storage and preparation of samples. ``shape`` is ``(C, H, W)``, or ``()`` for text."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    channels_last: bool

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "std"):  # JSON makes lists of them
            object.__setattr__(self, name, tuple(getattr(self, name)))


def format_of(dataset: Dataset, augment: bool, channels_last: bool) -> Format:
    """The format of a data set's samples."""
    if dataset.is_text:
        return Format((), (), (), 0, False, False)
    return Format(
        shape=tuple(dataset.train_x.shape[1:]),
        mean=dataset.mean,
        std=dataset.std,
        pad=dataset.augment_pad if augment else 0,
        flip=dataset.flip and augment,
        channels_last=channels_last,
    )


def stored(
    dataset: Dataset, augment: bool, channels_last: bool
) -> tuple[Format, dict[str, Tensor]]:
    """The data set in the form that :class:`Samples` reads."""
    arrays = {name: getattr(dataset, name) for name in ARRAYS}
    if not dataset.is_text:
        for name in ("train_x", "test_x"):
            # a copy: the strides of grey images choose between kernels that round differently
            pixels = arrays[name].permute(0, 2, 3, 1)
            arrays[name] = pixels.clone(memory_format=torch.contiguous_format)
    return format_of(dataset, augment, channels_last), arrays


def prepared(samples: Tensor, kind: Format) -> Tensor:
    """Raw samples as a model takes them: ``[N, C, H, W]`` pixels normalised, or token ids."""
    if not kind.shape:
        return samples.long()
    mean, std = (torch.tensor(values)[:, None, None] for values in (kind.mean, kind.std))
    return (samples.float() / 255 - mean) / std


class Samples:
    """Training and test samples on a device."""

    def __init__(self, kind: Format, arrays: dict[str, Tensor], device: torch.device) -> None:
        self.kind = kind
        self.device = device
        self.train_x, self.train_y, self.test_x, self.test_y = (
            arrays[name].to(device) for name in ARRAYS
        )
        if kind.shape:
            # x / 255 normalised, as one multiplication and one addition
            mean, std = torch.tensor(kind.mean), torch.tensor(kind.std)
            self._scale = (1 / (255 * std)).to(device)
            self._shift = (-mean / std).to(device)
            self._pixels = self.train_x.view(-1, kind.shape[0])

    def train_batches(
        self, indices: Tensor, epochs: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one client: every epoch in a new order and newly augmented."""
        count = len(indices)
        for _ in range(epochs):
            order = self._to_device(indices[torch.randperm(count, generator=generator)])
            draws = None
            if self._augments:
                flip, offsets = self._draws(count, generator)
                draws = self._to_device(flip), self._to_device(offsets)
            for start in range(0, count, batch_size):
                part = slice(start, start + batch_size)
                chosen = order[part]
                yield self._images(chosen, draws, part), self.train_y[chosen]

    def stacked_batches(
        self,
        held: list[Tensor],
        epochs: list[int],
        batch_size: int,
        generators: Iterable[torch.Generator],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of several clients at once, each of them as of :meth:`train_batches`.

        Clients are in descending order of steps; those that are done are left out. Yields samples
        and labels ``[K, B, ...]`` and the samples that count in each row ``[K]``; what follows
        them in a short batch repeats its last sample.
        """
        orders, flips, offsets = [], [], []
        sizes, augments = [len(each) for each in held], self._augments
        for size, often, generator in zip(sizes, epochs, generators, strict=True):
            for _ in range(often):
                orders.append(torch.randperm(size, generator=generator))
                if augments:
                    flip, offset = self._draws(size, generator)
                    flips.append(flip)
                    offsets.append(offset)
        counts, times = torch.tensor(sizes), torch.tensor(epochs)
        # all samples in the order of their use: clients one after the other, and their epochs
        shift = (counts.cumsum(0) - counts).repeat_interleave(counts * times)
        used = self._to_device(torch.cat(held)[torch.cat(orders) + shift])
        first = (counts * times).cumsum(0) - counts * times
        batches = counts.add(batch_size - 1).div_(batch_size, rounding_mode="floor")
        steps = batches * times
        draws = None
        if self._augments:
            draws = self._to_device(torch.cat(flips)), self._to_device(torch.cat(offsets, 1))
        for step in range(int(steps.max())):
            going = slice(int((steps > step).sum()))
            count, start = counts[going], step % batches[going] * batch_size
            there = (count - start).clamp_(max=batch_size)
            within = start[:, None] + torch.arange(int(there.max()))
            before = first[going] + step // batches[going] * count
            places = before[:, None] + torch.minimum(within, count[:, None] - 1)
            flat = self._to_device(places.flatten())
            chosen = used[flat]
            drawn = None if draws is None else (draws[0][flat], draws[1][:, flat])
            x, y = self._images(chosen, drawn, slice(None)), self.train_y[chosen]
            yield (
                x.unflatten(0, places.shape),
                y.unflatten(0, places.shape),
                self._to_device(there),
            )

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples as they are, never augmented."""
        chosen = indices.to(self.device)
        return self._prepared(self.train_x[chosen]), self.train_y[chosen]

    def test_batch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Test samples ``start`` to ``stop``, never augmented."""
        return self._prepared(self.test_x[start:stop]), self.test_y[start:stop]

    @property
    def _augments(self) -> bool:
        return bool(self.kind.pad or self.kind.flip)

    def _draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Column direction and offset of each sample: ``flip [n]``, ``(dy, dx) [2, n]``."""
        pad = self.kind.pad
        flip = torch.rand(count, generator=generator) < 0.5
        crop = torch.rand(count, generator=generator) < 0.5
        offsets = torch.randint(0, 2 * pad + 1, (2, count), generator=generator) - pad
        if not self.kind.flip:
            flip.zero_()
        return flip, offsets * crop

    def _to_device(self, numbers: Tensor) -> Tensor:
        """Copy to the device (pinned, non-blocking on CUDA)."""
        if self.device.type != "cuda":
            return numbers.to(self.device)
        return numbers.pin_memory().to(self.device, non_blocking=True)

    def _images(self, chosen: Tensor, draws: tuple[Tensor, Tensor] | None, part: slice) -> Tensor:
        if draws is None:
            return self._prepared(self.train_x.index_select(0, chosen))
        channels, height, width = self.kind.shape
        flip, (dy, dx) = draws[0][part, None], draws[1][:, part, None]
        rows = torch.arange(height, device=self.device) + dy
        columns = torch.arange(width, device=self.device) + dx
        # a pixel from outside is the zero that padding after normalisation would give
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
            :, None, :
        ]
        columns = torch.where(flip, width - 1 - columns, columns).clamp_(0, width - 1)
        rows.clamp_(0, height - 1)
        place = (chosen[:, None] * height + rows)[:, :, None] * width + columns[:, None, :]
        gathered = self._pixels.index_select(0, place.flatten())
        pixels = self._normalised(gathered.view(*place.shape, channels))
        return self._ordered(pixels.mul_(inside[..., None]))

    def _prepared(self, raw: Tensor) -> Tensor:
        return self._ordered(self._normalised(raw)) if self.kind.shape else raw.long()

    def _normalised(self, raw: Tensor) -> Tensor:
        return torch.addcmul(self._shift, raw.to(self._scale.dtype), self._scale)

    def _ordered(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2)
        return images if self.kind.channels_last else images.contiguous()
