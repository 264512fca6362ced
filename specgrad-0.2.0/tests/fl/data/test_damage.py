"""Files with a few wrong bytes: they load, or they are refused in one sentence."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from specgrad_data import DataError, Dataset, load
from specgrad_data.files import read_idx
from specgrad_data.images import decode_images

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
LABELS = np.arange(6) % 2


def picture(form: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(buffer, form)
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:2], y_test=LABELS[:2])
    return buffer.getvalue()


def parquet(**columns: list[object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({**columns, "label": LABELS.tolist()}), buffer)
    return buffer.getvalue()


def load_bytes(content: bytes, folder: Path, form: str) -> Dataset:
    path = folder / f"damaged.{form}"
    path.write_bytes(content)
    return load(f"{form}:{path}")


def read_idx_bytes(content: bytes, folder: Path) -> np.ndarray:
    path = folder / "damaged"
    path.write_bytes(content)
    return read_idx(path, 3)


SUBJECTS = {
    **{
        form: (picture(form), lambda content, _: decode_images([("x", content)], 1, size=8))
        for form in ("png", "jpeg", "webp", "gif", "bmp", "ppm")
    },
    "npz": (npz(), lambda content, folder: load_bytes(content, folder, "npz")),
    "parquet of images": (
        parquet(image=[{"bytes": picture("png"), "path": None}] * 6),
        lambda content, folder: load_bytes(content, folder, "parquet"),
    ),
    "parquet of texts": (
        parquet(text=["some words"] * 6),
        lambda content, folder: load_bytes(content, folder, "parquet"),
    ),
    "idx": (
        struct.pack(">BBBB3I", 0, 0, 8, 3, 6, 12, 12) + PIXELS[..., 0].tobytes(),
        read_idx_bytes,
    ),
}


@pytest.mark.parametrize("name", SUBJECTS)
@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_is_harmless_or_refused(name: str, data: st.DataObject, tmp_path: Path):
    content, read = SUBJECTS[name]
    damaged = bytearray(content)
    places = st.integers(0, len(content) - 1)
    for place, byte in data.draw(st.dictionaries(places, st.integers(0, 255), max_size=8)).items():
        damaged[place] = byte
    end = data.draw(st.one_of(st.just(len(content)), places))
    refusal = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(bytes(damaged[:end]), tmp_path)
        except DataError as error:
            refusal = str(error)
    assert refusal is None or "; " in refusal
