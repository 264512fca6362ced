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

from specgrad_fl.vectors import to_device

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


def prepared(samples: Tensor, form: Format) -> Tensor:
    """Raw samples as a model takes them: ``[N, C, H, W]`` pixels normalised, or token ids."""
    if not form.shape:
        return samples.long()
    mean, std = (torch.tensor(values)[:, None, None] for values in (form.mean, form.std))
    return (samples.float() / 255 - mean) / std


class Samples:
    """Training and test samples on a device.

    A batch is *drawn* on the host and *gathered* on the device. What is drawn is ``int64 [1, B]``,
    the indices of samples, or ``[3, B]`` with the number of each sample's crop of rows and of its
    crop and direction of columns.
    """

    def __init__(self, form: Format, arrays: dict[str, Tensor], device: torch.device) -> None:
        self.form = form
        self.device = device
        self.train_x, self.train_y, self.test_x, self.test_y = (
            arrays[name].to(device) for name in ARRAYS
        )
        if form.shape:
            # x / 255 normalised, as one multiplication and one addition
            mean, std = torch.tensor(form.mean), torch.tensor(form.std)
            self._scale = (1 / (255 * std)).to(device)
            self._shift = (-mean / std).to(device)
            self._pixels = self.train_x.view(-1, form.shape[0])
            self._rows, self._rows_inside = self._crops(form.shape[1], form.shape[2])
            forth, inside = self._crops(form.shape[2], 1)
            mirrored = form.shape[2] - 1 - forth if form.flip else forth[:0]
            self._columns = torch.cat([forth, mirrored])
            self._columns_inside = torch.cat([inside, inside[: len(mirrored)]])

    def _crops(self, size: int, stride: int) -> tuple[Tensor, Tensor]:
        """Places along one axis for each offset ``[2 pad + 1, size]``, and which are inside.

        A pixel from outside is the zero that padding after normalisation would give.
        """
        pad = self.form.pad
        places = torch.arange(-pad, pad + 1)[:, None] + torch.arange(size)
        inside = (places >= 0) & (places < size)
        return (places.clamp_(0, size - 1) * stride).to(self.device), inside.to(self.device)

    def train_draws(
        self, indices: Tensor, epochs: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Draw the batches of one client: every epoch in a new order and newly augmented."""
        for _ in range(epochs):
            drawn = self._draw(len(indices), generator)
            drawn[0] = indices[drawn[0]]
            yield from to_device(drawn, self.device).split(batch_size, 1)

    def stacked_batches(
        self,
        held: list[Tensor],
        epochs: list[int],
        batch_size: int,
        generators: Iterable[torch.Generator],
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of several clients at once, each of them as of :meth:`train_draws`.

        Clients are in descending order of steps; those that are done are left out. Yields samples
        and labels ``[K, B, ...]`` and the samples that count in each row ``[K]``; what follows
        them in a short batch repeats its last sample.
        """
        drawn = torch.cat(
            [
                self._draw(len(indices), generator)
                for indices, often, generator in zip(held, epochs, generators, strict=True)
                for _ in range(often)
            ],
            1,
        )
        counts, times = torch.tensor([len(each) for each in held]), torch.tensor(epochs)
        # all samples in the order of their use: clients one after the other, and their epochs
        shift = (counts.cumsum(0) - counts).repeat_interleave(counts * times)
        drawn[0] = torch.cat(held)[drawn[0] + shift]
        drawn = to_device(drawn, self.device)
        first = (counts * times).cumsum(0) - counts * times
        batches = counts.add(batch_size - 1).div_(batch_size, rounding_mode="floor")
        steps = batches * times
        for step in range(int(steps.max())):
            going = slice(int((steps > step).sum()))
            count, start = counts[going], step % batches[going] * batch_size
            there = (count - start).clamp_(max=batch_size)
            within = start[:, None] + torch.arange(int(there.max()))
            before = first[going] + step // batches[going] * count
            places = before[:, None] + torch.minimum(within, count[:, None] - 1)
            x, y = self.gather(drawn[:, to_device(places.flatten(), self.device)])
            yield (
                x.unflatten(0, places.shape),
                y.unflatten(0, places.shape),
                to_device(there, self.device),
            )

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples as they are, never augmented."""
        chosen = to_device(indices, self.device)
        return self._prepared(self.train_x.index_select(0, chosen)), self.train_y[chosen]

    def test_batch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Test samples ``start`` to ``stop``, never augmented."""
        return self._prepared(self.test_x[start:stop]), self.test_y[start:stop]

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """An order of ``count`` samples, and the crop and direction of each if they are augmented.

        Half of the samples are mirrored, and half of them moved by up to ``pad`` pixels.
        """
        order, pad = torch.randperm(count, generator=generator), self.form.pad
        if not (pad or self.form.flip):
            return order[None]
        flip = torch.rand(count, generator=generator) < 0.5
        crop = torch.rand(count, generator=generator) < 0.5
        offsets = torch.randint(0, 2 * pad + 1, (2, count), generator=generator) - pad
        rows, columns = offsets * crop + pad
        return torch.stack([order, rows, columns + flip * self.form.flip * (2 * pad + 1)])

    def gather(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels of a batch, from what was drawn."""
        chosen = drawn[0]
        if len(drawn) == 1:
            return self._prepared(self.train_x.index_select(0, chosen)), self.train_y[chosen]
        channels, height, width = self.form.shape
        _, rows, columns = drawn
        lines = torch.add(self._rows[rows], chosen[:, None], alpha=height * width)
        place = lines[:, :, None] + self._columns[columns][:, None, :]
        inside = self._rows_inside[rows][:, :, None] & self._columns_inside[columns][:, None, :]
        gathered = self._pixels.index_select(0, place.flatten())
        pixels = self._normalised(gathered.view(*place.shape, channels))
        return self._ordered(pixels.mul_(inside[..., None])), self.train_y[chosen]

    def _prepared(self, raw: Tensor) -> Tensor:
        return self._ordered(self._normalised(raw)) if self.form.shape else raw.long()

    def _normalised(self, raw: Tensor) -> Tensor:
        return torch.addcmul(self._shift, raw.to(self._scale.dtype), self._scale)

    def _ordered(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2)
        return images if self.form.channels_last else images.contiguous()
