"""Encoded images to arrays, and folders of images with one sub-folder per class."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specgrad_data.cache import cached
from specgrad_data.dataset import Split
from specgrad_data.errors import DataError, installing
from specgrad_data.files import damaged

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".webp")


def decode_images(
    sources: Iterable[tuple[str, bytes]],
    count: int,
    *,
    mode: str | None = None,
    size: int | None = None,
) -> NDArray[np.uint8]:
    """``uint8 [N, C, H, W]`` of ``count`` encoded images, each with a name for its error.

    mode: ``RGB`` or ``L``; by default ``L`` where the first image is grey
    size: side to which every image is scaled; by default all must be as large as the first
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError(
            f"encoded images need Pillow, which cannot be imported ({error}); {installing('fl')}"
        ) from error

    if size == 0:
        raise DataError("size is 0; choose the number of pixels of an image's side")
    pixels: NDArray[np.uint8] | None = None
    for place, (name, encoded) in enumerate(sources):
        try:
            with Image.open(io.BytesIO(encoded)) as image:
                if mode is None:
                    mode = "L" if image.mode in ("1", "L", "I;16", "LA") else "RGB"
                converted = image.convert(mode)
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError,
                SyntaxError, EOFError) as error:  # fmt: skip
            raise DataError(
                f"image {name} cannot be decoded ({error}); the file is damaged, get it again"
            ) from error
        if size is not None and converted.size != (size, size):
            converted = converted.resize((size, size), Image.Resampling.BILINEAR)
        width, height = converted.size
        if pixels is None:
            pixels = np.empty((count, len(mode) if mode == "RGB" else 1, height, width), np.uint8)
        if (height, width) != pixels.shape[2:]:
            raise DataError(
                f"image {name} has {height} x {width} pixels and the first one {pixels.shape[2]} x "
                f"{pixels.shape[3]}; scale all to one size, as the option size does"
            )
        pixels[place] = np.atleast_3d(np.asarray(converted)).transpose(2, 0, 1)
    if pixels is None:
        raise DataError("there is no image to decode; put at least one in every part of the data")
    return pixels


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders in the order of their labels: by number where all are numbers, else by name."""
    folders = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    if all(path.name.isdecimal() for path in folders):
        return sorted(folders, key=lambda path: int(path.name))
    return sorted(folders, key=lambda path: path.name)


@dataclass(frozen=True, eq=False)
class Listing:
    """Image files and the label of each."""

    files: list[Path]
    labels: NDArray[np.int64]

    def read(self, mode: str | None = None, size: int | None = None) -> Split:
        """Decode all files."""
        pixels = decode_images(self._contents(), len(self.files), mode=mode, size=size)
        return Split(pixels, self.labels)

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        for file in self.files:
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise damaged(file, error) from error


def list_images(folder: Path, classes: list[str] | None = None) -> tuple[Listing, list[str]]:
    """Image files below ``folder/CLASS`` with their labels, and the names of the classes.

    classes: the names that count, in the order of their labels, such as those of the training
        images; a folder of another name is refused.
    """
    folders = class_folders(folder)
    known = [path.name for path in folders] if classes is None else classes
    strangers = [path.name for path in folders if path.name not in known]
    if strangers:
        raise DataError(
            f"{folder / strangers[0]} is a class without training images; add some or remove it"
        )
    files: list[Path] = []
    labels: list[int] = []
    for path in folders:
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(
                f"{path} holds no images ({', '.join(SUFFIXES)}); add some or remove the folder"
            )
        files += found
        labels += [known.index(path.name)] * len(found)
    if not files:
        raise DataError(f"{folder} holds no class folders; put images in {folder}/CLASS/")
    return Listing(files, np.array(labels, dtype=np.int64)), known


def read_listings(
    name: str, train: Listing, test: Listing, mode: str | None = None, size: int | None = None
) -> tuple[Split, Split]:
    """Decode both parts, once; the test images get as many channels as the training images."""

    def decode() -> tuple[Split, Split]:
        first = train.read(mode, size)
        return first, test.read(channel_mode(first), size)

    return cached(name, train.files + test.files, decode, mode=mode, size=size)


def channel_mode(split: Split) -> str:
    """Pillow's name for images with the channels of these."""
    return "RGB" if split.x.shape[1] == 3 else "L"
