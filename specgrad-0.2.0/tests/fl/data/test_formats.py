"""Loaders on small files that the tests write in the official formats, whole and damaged."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from specgrad_data import DataError, load, tiny_imagenet
from specgrad_data.files import read_idx


def write_idx(path: Path, values: np.ndarray) -> None:
    kind = {"u1": 0x08, "i4": 0x0C}[values.dtype.str[1:]]
    header = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    content = header + values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def grey(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    return (np.arange(count) % classes).astype(np.uint8)


def encode(image: np.ndarray, form: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form)
    return buffer.getvalue()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist(tmp_path: Path, suffix: str):
    folder = tmp_path / "fashion_mnist"
    for part, count in (("train", 30), ("t10k", 20)):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", grey(count, count))
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels(count))
    dataset = load("fashion_mnist", tmp_path)
    assert np.array_equal(dataset.train_x[:, 0].numpy(), grey(30, 30))
    assert np.array_equal(dataset.test_x[:, 0].numpy(), grey(20, 20))
    assert dataset.test_y.tolist() == labels(20).tolist()
    assert (dataset.mean, dataset.std) == ((0.2860,), (0.3530,))
    write_idx(folder / f"t10k-labels-idx1-ubyte{suffix}", labels(19))
    with pytest.raises(DataError, match=r"shape \(19,\)"):
        load("fashion_mnist", tmp_path)
    (folder / f"t10k-labels-idx1-ubyte{suffix}").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz of fashion_mnist is missing"):
        load("fashion_mnist", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damaged_idx_files(tmp_path: Path, suffix: str):
    path = tmp_path / f"images{suffix}"
    write_idx(path, grey(5))
    whole = path.read_bytes()
    with pytest.raises(DataError, match="does not begin like an idx file of 1 dimensions"):
        read_idx(path, 1)
    for cut in (-7, 100, 10, 2, 0):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"images\S* (cannot be read|holds \d+ bytes)"):
            read_idx(path, 3)
    content = bytearray(gzip.decompress(whole) if suffix else whole)
    content[2] = 0x0D
    path.write_bytes(gzip.compress(bytes(content)) if suffix else bytes(content))
    with pytest.raises(DataError, match="unknown type 0x0d"):
        read_idx(path, 3)


def write_mnist_by_writer(folder: Path, writers: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "mnist.npz", x_train=grey(40), y_train=labels(40), x_test=grey(10, 1),
        y_test=labels(10),
    )  # fmt: skip
    np.savez(folder / "writer_ids.npz", writer_train=writers, writer_test=np.arange(10))


def test_mnist_by_writer_from_npz(tmp_path: Path):
    folder = tmp_path / "mnist_by_writer"
    write_mnist_by_writer(folder, np.repeat([2100, 7, 350, 8], 10))
    dataset = load("mnist_by_writer", tmp_path)
    assert dataset.train_x.shape == (40, 1, 28, 28)
    assert dataset.writers is not None
    assert dataset.writers.tolist() == np.repeat([3, 0, 2, 1], 10).tolist()
    write_mnist_by_writer(folder, np.repeat([1, 2, 3], 10))
    with pytest.raises(DataError, match="30 writers for 40 training samples"):
        load("mnist_by_writer", tmp_path)
    (folder / "writer_ids.npz").unlink()
    with pytest.raises(DataError, match=r"writer_ids\.npz of mnist_by_writer is missing"):
        load("mnist_by_writer", tmp_path)


@pytest.mark.filterwarnings("error")
def test_mnist_by_writer_from_qmnist(tmp_path: Path):
    folder = tmp_path / "mnist_by_writer"
    for part, count in (("train", 30), ("test", 20)):
        table = np.zeros((count, 8), np.int32)
        table[:, 0] = labels(count)
        table[:, 2] = np.arange(count) // 10 + 2000
        write_idx(folder / f"qmnist-{part}-images-idx3-ubyte.gz", grey(count))
        write_idx(folder / f"qmnist-{part}-labels-idx2-int.gz", table)
    dataset = load("mnist_by_writer", tmp_path)
    assert dataset.writers is not None
    assert dataset.writers.tolist() == np.repeat([0, 1, 2], 10).tolist()
    assert dataset.test_y.tolist() == labels(20).tolist()
    write_idx(folder / "qmnist-train-labels-idx2-int.gz", np.zeros((30, 2), np.int32))
    with pytest.raises(DataError, match="2 columns and none for the writer"):
        load("mnist_by_writer", tmp_path)


def blood(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)


def write_blood(path: Path, **changes: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    arrays = {}
    for part, count in (("train", 24), ("val", 8), ("test", 16)):
        arrays[f"{part}_images"] = blood(count)
        arrays[f"{part}_labels"] = labels(count, 8)[:, None]
    np.savez(path, **{**arrays, **changes})


def test_bloodmnist(tmp_path: Path):
    path = tmp_path / "bloodmnist" / "bloodmnist.npz"
    write_blood(path)
    dataset = load("bloodmnist", tmp_path)
    assert dataset.num_classes == 8
    assert np.array_equal(dataset.train_x.numpy(), blood(24).transpose(0, 3, 1, 2))
    assert dataset.test_y.tolist() == labels(16, 8).tolist()
    whole = path.read_bytes()
    for content in (whole[:-50], whole[:5000], b"", b"no zip at all"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"bloodmnist\.npz cannot be read"):
            load("bloodmnist", tmp_path)
    write_blood(path, train_labels=labels(24, 9)[:, None])
    with pytest.raises(DataError, match=r"labels in .* go from 0 to 8"):
        load("bloodmnist", tmp_path)
    write_blood(path, test_images=blood(16)[:, :27])
    with pytest.raises(DataError, match=r"shape \(3, 27, 28\), where \(3, 28, 28\)"):
        load("bloodmnist", tmp_path)
    np.savez(path, train_images=blood(3))
    with pytest.raises(DataError, match="but not train_labels, test_images, test_labels"):
        load("bloodmnist", tmp_path)


class Explosive:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was opened",))


def test_nothing_is_unpickled(tmp_path: Path):
    path = tmp_path / "bloodmnist" / "bloodmnist.npz"
    write_blood(path, train_labels=np.array([Explosive()], dtype=object))
    with pytest.raises(DataError, match=r"cannot be read .*allow_pickle"):
        load("bloodmnist", tmp_path)
    np.save(path.with_suffix(""), np.array([Explosive()], dtype=object), allow_pickle=True)
    path.with_suffix(".npy").rename(path)
    with pytest.raises(DataError, match="cannot be read"):
        load("bloodmnist", tmp_path)


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(tiny_imagenet, "NUM_CLASSES", 3)
    return ["n03", "n01", "n02"]


def write_tiny(where: Path, wnids: list[str]) -> None:
    """The official tree; one training image is grey, as a few hundred of the real ones are."""
    where.mkdir(parents=True)
    (where / "wnids.txt").write_text("\n".join(wnids) + "\n")
    for wnid in wnids:
        folder = where / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for number in range(2):
            shade = np.full((64, 64, 3), 40 * int(wnid[1:]) + number, np.uint8)
            is_grey = wnid == "n02" and number == 1
            encoded = encode(shade[:, :, 0] if is_grey else shade, "jpeg")
            (folder / f"{wnid}_{number}.JPEG").write_bytes(encoded)
    images = where / "val" / "images"
    images.mkdir(parents=True)
    lines = []
    for number, wnid in enumerate(wnids):
        shade = np.full((64, 64, 3), 40 * int(wnid[1:]), np.uint8)
        (images / f"val_{number}.JPEG").write_bytes(encode(shade, "jpeg"))
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62")
    (where / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def test_tiny_imagenet_folders(tmp_path: Path, few_classes: list[str]):
    where = tmp_path / "tiny_imagenet" / "tiny-imagenet-200"
    write_tiny(where, few_classes)
    dataset = load("tiny_imagenet", tmp_path)
    assert dataset.train_x.shape == (6, 3, 64, 64)
    assert dataset.train_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.train_x[:, 0, 5, 5].tolist() == [40, 41, 80, 81, 120, 121]
    assert dataset.test_y.tolist() == [2, 0, 1]
    assert dataset.test_x[:, 2, 9, 9].tolist() == [120, 40, 80]
    assert (dataset.augment_pad, dataset.flip) == (8, True)
    # labels are not kept longer than the file they come from
    annotations = where / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("n03", "n01"))
    assert load("tiny_imagenet", tmp_path).test_y.tolist() == [0, 0, 1]


def test_tiny_imagenet_that_is_incomplete(tmp_path: Path, few_classes: list[str]):
    where = tmp_path / "tiny_imagenet" / "tiny-imagenet-200"
    write_tiny(where, few_classes)
    annotations = where / "val" / "val_annotations.txt"
    lines = annotations.read_text()
    for line in ("val_0.JPEG\tn99\t0\t0\t1\t1", "../../wnids.txt\tn01\t0", "val_0.JPEG"):
        annotations.write_text(lines + line)
        with pytest.raises(DataError, match="which names no file and class"):
            load("tiny_imagenet", tmp_path)
    annotations.write_text(lines + "val_7.JPEG\tn01\t0\t0\t1\t1")
    with pytest.raises(DataError, match=r"val/images/val_7\.JPEG of tiny_imagenet is missing"):
        load("tiny_imagenet", tmp_path)
    annotations.unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt of tiny_imagenet is missing"):
        load("tiny_imagenet", tmp_path)
    annotations.write_text(lines)
    damaged = where / "train" / "n01" / "images" / "n01_0.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match=r"n01_0\.JPEG cannot be decoded"):
        load("tiny_imagenet", tmp_path)
    for path in damaged.parent.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"train/n01/images/\*\.JPEG of tiny_imagenet is missing"):
        load("tiny_imagenet", tmp_path)
    (where / "wnids.txt").write_text("n01\nn02\n")
    with pytest.raises(DataError, match="names 2 classes instead of 3"):
        load("tiny_imagenet", tmp_path)


def test_tiny_imagenet_parquet(tmp_path: Path, few_classes: list[str]):
    folder = tmp_path / "tiny_imagenet"
    folder.mkdir()
    for split, shades in (("train", [10, 20, 30]), ("valid", [40])):
        pictures = [{"bytes": encode(np.full((64, 64), s, np.uint8)), "path": None} for s in shades]
        table = pa.table({"image": pictures, "label": list(range(len(shades)))})
        pq.write_table(table, folder / f"{split}.parquet")
    dataset = load("tiny_imagenet", tmp_path)
    assert dataset.train_x[:, :, 0, 0].tolist() == [[10] * 3, [20] * 3, [30] * 3]
    assert dataset.test_x.shape == (1, 3, 64, 64)
    (folder / "valid.parquet").unlink()
    with pytest.raises(DataError, match=r"valid\.parquet of tiny_imagenet is missing"):
        load("tiny_imagenet", tmp_path)


def leaf(writers: dict[str, int]) -> dict[str, object]:
    """LEAF's structure; a pixel's value is its writer's number of samples over 255."""
    data = {
        user: {"x": [[count / 255] * 784] * count, "y": [n % 62 for n in range(count)]}
        for user, count in writers.items()
    }
    return {"users": list(writers), "num_samples": list(writers.values()), "user_data": data}


def write_femnist(folder: Path, *contents: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place, content in enumerate(contents):
        (folder / f"all_data_{place}.json").write_text(json.dumps(content))


def test_femnist_from_leaf(tmp_path: Path):
    writers = {"f0002": 20, "f0001": 1}
    write_femnist(tmp_path / "femnist", leaf(writers), leaf({"f0003": 35}))
    dataset = load("femnist", tmp_path)
    assert dataset.num_classes == 62
    assert dataset.writers is not None
    assert torch.bincount(dataset.writers).tolist() == [1, 18, 32]
    assert len(dataset.test_y) == 2 + 3
    sizes = torch.tensor([1, 20, 35])
    assert torch.equal(dataset.train_x[:, 0, 0, 0].long(), sizes[dataset.writers])
    again, other = load("femnist", tmp_path), load("femnist", tmp_path, seed=1)
    assert again.fingerprint == dataset.fingerprint != other.fingerprint


def test_femnist_sample_takes_whole_writers(tmp_path: Path):
    write_femnist(tmp_path / "femnist", leaf({f"w{n:02}": 10 for n in range(20)}))
    dataset = load("femnist", tmp_path, fraction=0.25)
    assert dataset.writers is not None
    assert torch.bincount(dataset.writers).tolist() == [9] * 5
    for fraction in (0, 1.5):
        with pytest.raises(DataError, match="choose a number above 0 and up to 1"):
            load("femnist", tmp_path, fraction=fraction)


def test_femnist_files_that_cannot_be_used(tmp_path: Path):
    folder = tmp_path / "femnist"
    write_femnist(folder, leaf({"f1": 20}))
    path = folder / "all_data_0.json"
    whole = path.read_text()

    def refuses(content: object, complaint: str) -> None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(DataError, match=complaint):
            load("femnist", tmp_path)

    refuses(whole[:-9], "not what LEAF writes")
    refuses("[1, 2]", "not what LEAF writes")
    refuses({"users": []}, "not what LEAF writes")
    refuses({"users": [], "num_samples": [], "user_data": {}}, "no writer")
    bad = leaf({"f1": 20})
    bad["num_samples"] = [21]
    refuses(bad, "20 images and 20 labels where 21 are announced")
    bad = leaf({"f1": 20})
    bad["user_data"]["f1"]["x"][3] = [0.5] * 783
    refuses(bad, "not what LEAF writes")
    bad["user_data"]["f1"]["x"][3] = [-0.5] * 784
    refuses(bad, r"pixels from -0\.5 to")
    bad["user_data"]["f1"]["x"][3] = [float("nan")] * 784
    refuses(bad, "pixels from nan to")
    bad = leaf({"f1": 20})
    bad["user_data"]["f1"]["y"][3] = 62
    refuses(bad, "labels in .* go from 0 to 62")
    bad = leaf({"f1": 20, "f2": 20})
    bad["user_data"]["f2"]["y"] = [[0, 1]] * 20
    refuses(bad, "20 images and 40 labels where 20 are announced")


def test_femnist_from_parquet(tmp_path: Path):
    folder = tmp_path / "femnist"
    folder.mkdir()
    table = {
        "image": [{"bytes": encode(image), "path": None} for image in grey(40)],
        "writer_id": [f"f{n // 20}" for n in range(40)],
        "hsf_id": [0] * 40,
        "character": [n % 62 for n in range(40)],
    }
    pq.write_table(pa.table(table), folder / "train.parquet")
    dataset = load("femnist", tmp_path)
    assert dataset.writers is not None
    assert torch.bincount(dataset.writers).tolist() == [18, 18]
    assert len(dataset.test_x) == 4


QUESTIONS = [
    ("1", "Why is the sky blue?", r"I asked\nmy mother", 'she said ""because"" & left'),
    ("10", "Sky, blue sky!", "", "the sea"),
    ("2", "Ein Äpfel; l'été", "x" * 50, "…"),
]


def write_yahoo_csv(folder: Path, train: list[tuple[str, ...]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", QUESTIONS[:1])):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def test_yahoo_csv(tmp_path: Path):
    write_yahoo_csv(tmp_path / "yahoo_answers" / "yahoo_answers_csv", QUESTIONS)
    dataset = load("yahoo_answers", tmp_path, max_length=12)
    assert dataset.is_text
    assert (dataset.vocabulary, dataset.num_classes) == (30_000, 10)
    assert (dataset.mean, dataset.std) == ((), ())
    assert dataset.train_y.tolist() == [0, 9, 1]
    sky, the, blue = 2, 4, 3
    first, second, third = dataset.train_x.tolist()
    assert [first[2], first[3], first[4]] == [the, sky, blue]
    assert second == [sky, blue, sky, the, second[4]] + [0] * 7
    assert third[:4] != [1] * 4
    assert dataset.test_x.tolist() == [first]


def test_yahoo_vocabulary_is_that_of_the_training_data_and_limited(tmp_path: Path):
    write_yahoo_csv(tmp_path / "yahoo_answers", QUESTIONS[1:])
    dataset = load("yahoo_answers", tmp_path, vocabulary=3, max_length=5)
    # only the most frequent word has an id of its own
    assert dataset.train_x.tolist() == [[2, 1, 2, 1, 1], [1, 1, 1, 1, 0]]
    assert dataset.test_x.tolist() == [[1, 1, 1, 2, 1]]
    for options, complaint in (
        ({"vocabulary": 2}, "choose 3 or more"),
        ({"max_length": 4}, "choose 5 words or more"),
    ):
        with pytest.raises(DataError, match=complaint):
            load("yahoo_answers", tmp_path, **options)


@pytest.mark.parametrize(
    "row", [("0", "a", "b", "c"), ("11", "a", "b", "c"), ("x", "a", "b", "c"), ("1", "a", "b")]
)
def test_yahoo_rows_that_are_refused(tmp_path: Path, row: tuple[str, ...]):
    write_yahoo_csv(tmp_path / "yahoo_answers", [*QUESTIONS, row])
    with pytest.raises(DataError, match=r"train\.csv line 4 is not a class from 1 to 10"):
        load("yahoo_answers", tmp_path)


def test_yahoo_files_that_are_cut_or_missing(tmp_path: Path):
    folder = tmp_path / "yahoo_answers"
    write_yahoo_csv(folder, QUESTIONS)
    whole = (folder / "train.csv").read_bytes()
    for content in (whole[:-10], whole.replace("Ä".encode(), b"\xff")):
        (folder / "train.csv").write_bytes(content)
        with pytest.raises(DataError, match=r"train\.csv cannot be read"):
            load("yahoo_answers", tmp_path)
    (folder / "test.csv").unlink()
    with pytest.raises(DataError, match=r"test\.csv of yahoo_answers is missing"):
        load("yahoo_answers", tmp_path)


def test_yahoo_parquet_equals_csv(tmp_path: Path):
    write_yahoo_csv(tmp_path / "csv" / "yahoo_answers", QUESTIONS)
    folder = tmp_path / "parquet" / "yahoo_answers"
    folder.mkdir(parents=True)
    for name, rows in (("train", QUESTIONS), ("test", QUESTIONS[:1])):
        classes, titles, bodies, answers = zip(*rows, strict=True)
        table = {
            "id": list(range(len(rows))),
            "topic": [int(label) - 1 for label in classes],
            "question_title": titles,
            "question_content": bodies,
            "best_answer": answers,
        }
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    found = [load("yahoo_answers", tmp_path / form).fingerprint for form in ("csv", "parquet")]
    assert found[0] == found[1]
    (folder / "test.parquet").unlink()
    with pytest.raises(DataError, match=r"test\.parquet of yahoo_answers is missing"):
        load("yahoo_answers", tmp_path / "parquet")


def test_real_mnist_by_writer(real_data: Path):
    if not (real_data / "mnist_by_writer").is_dir():
        pytest.skip("no MNIST by writer in $SPECGRAD_DATA or ../shared/data")
    dataset = load("mnist_by_writer", real_data)
    assert dataset.train_x.shape == (60_000, 1, 28, 28)
    assert dataset.writers is not None
    assert len(torch.unique(dataset.writers)) == 539


def test_real_yahoo_sample(real_data: Path):
    folder = real_data / "yahoo_answers_small"
    if not folder.is_dir():
        pytest.skip("no sample of Yahoo! Answers in $SPECGRAD_DATA or ../shared/data")
    dataset = load(f"parquet:{folder}")
    assert len(dataset.train_y) + len(dataset.test_y) == 4918
    assert dataset.num_classes == 10
    # most words of the test texts are known from the training texts
    words = dataset.test_x[dataset.test_x > 0]
    assert float((words == 1).float().mean()) < 0.1


def test_real_fashion_mnist(real_data: Path):
    if not (real_data / "fashion_mnist").is_dir():
        pytest.skip("no Fashion-MNIST in $SPECGRAD_DATA or ../shared/data")
    dataset = load("fashion_mnist", real_data)
    assert torch.bincount(dataset.train_y).tolist() == [6000] * 10
