"""Encoded images to arrays, and folders of images with one sub-folder per class."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specgrad_data.cache import cached
from specgrad_data.dataset import Split
from specgrad_data.errors import DataError, installing
from specgrad_data.files import Array, readable

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".webp")
# Pillow's decoders of these; the others are for formats that few have looked at
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
# image files, each with its label
Labelled = list[tuple[Path, int]]


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
            with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
                if mode is None:
                    mode = "L" if image.mode in ("1", "L", "I;16", "LA") else "RGB"
                converted = image.convert(mode)
        except Exception as error:  # decoders raise whatever a damaged header leads them to
            # which Pillow says of the bytes in memory, by their address
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "its format is not known" if unknown else error
            raise DataError(
                f"image {name} cannot be decoded ({reason}); the file is damaged, get it again"
            ) from error
        if size is not None and converted.size != (size, size):
            converted = converted.resize((size, size), Image.Resampling.BILINEAR)
        width, height = converted.size
        if pixels is None:
            pixels = np.empty((count, 3 if mode == "RGB" else 1, height, width), np.uint8)
        if (height, width) != pixels.shape[2:]:
            raise DataError(
                f"image {name} has {height} x {width} pixels and the first one {pixels.shape[2]} x "
                f"{pixels.shape[3]}; scale all to one size, such as --data-option size=32"
            )
        pixels[place] = np.atleast_3d(np.asarray(converted)).transpose(2, 0, 1)
    if pixels is None:
        raise DataError("there is no image to decode; put at least one in every part of the data")
    return pixels


def channel_mode(split: Split) -> str:
    """Pillow's name for images with the channels of these."""
    return "RGB" if split.x.shape[1] == 3 else "L"


def list_images(folder: Path, classes: list[str] | None = None) -> tuple[Labelled, list[str]]:
    """Image files below ``folder/CLASS`` with their labels, and the names of the classes.

    classes: the names that count, in the order of their labels, such as those of the training
        images; a folder of another name is refused. By default all that are there, in the order
        of their numbers where all are numbers.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    known = names if classes is None else classes
    found: Labelled = []
    for name in names:
        path = folder / name
        if name not in known:
            raise DataError(f"{path} is a class without training images; add some or remove it")
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(
                f"{path} holds no images ({', '.join(SUFFIXES)}); add some or remove the folder"
            )
        found += [(file, known.index(name)) for file in files]
    if not found:
        raise DataError(f"{folder} holds no class folders; put images in {folder}/CLASS/")
    return found, known


def read_files(
    name: str, train: Labelled, test: Labelled, mode: str | None = None, size: int | None = None
) -> tuple[Split, Split]:
    """Decode both parts, once; the test images get as many channels as the training images."""

    def labelled(files: Labelled, pixels: Array) -> Split:
        return Split(pixels, np.array([label for _, label in files], dtype=np.int64))

    def read(files: Labelled, mode: str | None) -> Split:
        return labelled(files, decode_images(_contents(files), len(files), mode=mode, size=size))

    def decode() -> tuple[Split, Split]:
        first = read(train, mode)
        return first, read(test, channel_mode(first))

    kept = cached(name, [file for file, _ in train + test], decode, mode=mode, size=size)
    # a table that labels come from may have changed since the images were decoded
    return labelled(train, kept[0].x), labelled(test, kept[1].x)


def _contents(files: Labelled) -> Iterator[tuple[str, bytes]]:
    for file, _ in files:
        with readable(file):
            yield str(file), file.read_bytes()
