"""A user's own npz, parquet and image folders; npz files that are refused: fl/test_refusals.py."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from specgrad_data import DataError, load, own


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def write_npz(path: Path, **changes: np.ndarray) -> str:
    arrays = {
        "x_train": pixels(12, 6, 5, 3),
        "y_train": np.arange(12) % 3,
        "x_test": pixels(4, 6, 5, 3),
        "y_test": np.arange(4) % 3,
    }
    np.savez(path, **{**arrays, **changes})
    return f"npz:{path}"


def test_npz_of_images(tmp_path: Path):
    name = write_npz(tmp_path / "mine.npz")
    dataset = load(name, augment_pad=2, flip=True)
    assert dataset.name == "mine"
    assert np.array_equal(dataset.train_x.numpy(), pixels(12, 6, 5, 3).transpose(0, 3, 1, 2))
    assert (dataset.num_classes, dataset.augment_pad, dataset.flip) == (3, 2, True)
    assert len(dataset.mean) == len(dataset.std) == 3
    assert load(name, num_classes=7).num_classes == 7


@pytest.mark.parametrize("channels", ["first", "last"])
def test_npz_of_grey_images_needs_no_channel(tmp_path: Path, channels: str):
    name = write_npz(tmp_path / "a.npz", x_train=pixels(12, 6, 5), x_test=pixels(4, 6, 5))
    assert load(name, channels=channels).train_x.shape == (12, 1, 6, 5)


def test_npz_with_channels_first_writers_and_names(tmp_path: Path):
    name = write_npz(
        tmp_path / "a.npz",
        x_train=pixels(12, 3, 6, 5),
        x_test=pixels(4, 3, 6, 5),
        writer_train=np.array(["bob", "ann"] * 6),
    )
    dataset = load(name, channels="first")
    assert np.array_equal(dataset.train_x.numpy(), pixels(12, 3, 6, 5))
    assert dataset.writers is not None
    assert dataset.writers.tolist() == [1, 0] * 6


def test_npz_of_tokens(tmp_path: Path):
    ids = np.arange(60).reshape(12, 5)
    dataset = load(write_npz(tmp_path / "a.npz", x_train=ids, x_test=ids[:4]))
    assert dataset.is_text
    assert dataset.vocabulary == 60
    assert torch.equal(dataset.train_x, torch.from_numpy(ids))


def test_arrays_of_a_loader_that_are_refused():
    images = {"x_train": pixels(4, 6, 5), "x_test": pixels(2, 6, 5)}
    arrays = {**images, "y_train": [0, 1, 0, 1], "y_test": [0, 1]}
    assert own.load_by(lambda: {**arrays, "notes": [[1], [1, 2]]}, "a:b", {}).num_classes == 2
    for changes, complaint in (
        ({"y_train": [[0], [0, 1]]}, "dataset 'a:b' failed: ValueError"),
        ({"writer_train": ["ann", None, "bob", "bob"]}, "name every writer"),
    ):
        with pytest.raises(DataError, match=complaint):
            own.load_by(lambda changes=changes: {**arrays, **changes}, "a:b", {})


def encode(image: np.ndarray, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def write_folders(root: Path) -> None:
    for part, count in (("train", 3), ("test", 1)):
        for label, kind in enumerate(("cat", "dog")):
            folder = root / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                image = np.full((8, 8, 3), 100 * label + number, np.uint8)
                (folder / f"{number}.png").write_bytes(encode(image))


def test_image_folders(tmp_path: Path):
    write_folders(tmp_path / "pets")
    dataset = load(f"images:{tmp_path / 'pets'}", flip=True)
    assert (dataset.name, dataset.num_classes, dataset.flip) == ("pets", 2, True)
    assert dataset.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert dataset.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert load(f"images:{tmp_path / 'pets'}", size=4).train_x.shape == (6, 3, 4, 4)


def test_image_folders_that_are_refused(tmp_path: Path):
    name = f"images:{tmp_path}"
    with pytest.raises(DataError, match="put images in train/CLASS there"):
        load(name)
    write_folders(tmp_path)
    (tmp_path / "train" / "dog" / "9.png").write_bytes(encode(pixels(9, 8, 3)))
    with pytest.raises(DataError, match=r"9\.png has 9 x 8 pixels and the first one 8 x 8"):
        load(name)
    assert load(name, size=8).train_x.shape == (7, 3, 8, 8)
    (tmp_path / "train" / "dog" / "9.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"9\.png cannot be decoded \(its format is not known\)"):
        load(name)
    # a decoder that is not for these suffixes, and raises what it likes
    dds = bytearray(encode(pixels(8, 8, 3), "DDS"))
    dds[80:84] = b"\0\0\0\0"
    for content in (bytes(dds), encode(pixels(8, 8, 3), "TIFF")):
        (tmp_path / "train" / "dog" / "9.png").write_bytes(content)
        with pytest.raises(DataError, match=r"9\.png cannot be decoded"):
            load(name)
    (tmp_path / "train" / "dog" / "9.png").unlink()
    (tmp_path / "test" / "emu").mkdir()
    with pytest.raises(DataError, match="emu is a class without training images"):
        load(name)
    (tmp_path / "train" / "emu").mkdir()
    with pytest.raises(DataError, match="emu holds no images"):
        load(name)


def write_pictures(path: Path, count: int, **columns: list[object]) -> None:
    pictures = [{"bytes": encode(image), "path": f"{n}.png"}
                for n, image in enumerate(pixels(count, 4, 4))]  # fmt: skip
    table = {"image": pictures, "label": [n % 2 for n in range(count)], **columns}
    pq.write_table(pa.table(table), path)


def test_parquet_of_images_with_and_without_a_test_file(tmp_path: Path):
    write_pictures(tmp_path / "train.parquet", 20, author=[f"a{n % 5}" for n in range(20)])
    name = f"parquet:{tmp_path}"
    held_out = load(name, writer_column="author", test_fraction=0.3)
    assert held_out.train_x.shape == (14, 1, 4, 4)
    assert torch.bincount(held_out.test_y).tolist() == [3, 3]
    assert held_out.writers is not None
    assert len(held_out.writers) == 14
    write_pictures(tmp_path / "test.parquet", 6)
    dataset = load(name)
    assert np.array_equal(dataset.train_x[:, 0].numpy(), pixels(20, 4, 4))
    assert np.array_equal(dataset.test_x[:, 0].numpy(), pixels(6, 4, 4))
    assert load(f"parquet:{tmp_path / 'train.parquet'}").train_x.shape == (16, 1, 4, 4)
    with pytest.raises(DataError, match="but not nobody"):
        load(name, writer_column="nobody")
    write_pictures(tmp_path / "train.parquet", 20, author=["ann", None] * 10)
    with pytest.raises(DataError, match="writers of the samples are not of one kind"):
        load(name, writer_column="author")


def test_parquet_of_texts(tmp_path: Path):
    texts = ["red apple", "green apple", "blue sea", "green sea"] * 5
    table = pa.table({"text": texts, "label": [0, 0, 1, 1] * 5})
    pq.write_table(table, tmp_path / "train.parquet")
    dataset = load(f"parquet:{tmp_path}", max_length=5, vocabulary=100)
    assert (dataset.vocabulary, dataset.num_classes) == (100, 2)
    assert dataset.train_x.shape == (16, 5)
    assert torch.bincount(dataset.test_y).tolist() == [2, 2]
    # one author for each text, so that the words of a sample tell who wrote it
    authors = table.append_column("author", pa.array(["ann", "bob", "cem", "dee"] * 5))
    pq.write_table(authors, tmp_path / "train.parquet")
    written = load(f"parquet:{tmp_path}", max_length=5, writer_column="author")
    pairs = zip(map(tuple, written.train_x.tolist()), written.writers.tolist(), strict=True)
    assert sorted(writer for _, writer in set(pairs)) == [0, 1, 2, 3]
    pq.write_table(table.rename_columns(["review", "stars"]), tmp_path / "test.parquet")
    pq.write_table(table.rename_columns(["review", "stars"]), tmp_path / "train.parquet")
    named = load(f"parquet:{tmp_path}", text_column="review", label_column="stars", max_length=5)
    assert torch.equal(named.train_x, named.test_x)
    with pytest.raises(DataError, match="has the columns review, stars; expected label"):
        load(f"parquet:{tmp_path}")
    with pytest.raises(DataError, match="expected image or img or text"):
        load(f"parquet:{tmp_path}", label_column="stars")


def test_parquet_that_is_missing(tmp_path: Path):
    for path in (tmp_path, tmp_path / "a.parquet"):
        with pytest.raises(DataError, match=r"put train\.parquet there"):
            load(f"parquet:{path}")
