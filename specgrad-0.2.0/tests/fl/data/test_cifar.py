"""CIFAR in its three forms, the cache behind two of them, and CIFAR-C."""

from __future__ import annotations

import dataclasses
import io
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from specgrad_data import DataError, Dataset, DataWarning, cifar, load
from specgrad_data.catalog import EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS

PER_BATCH = 20
FAMILIES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def samples(seed: int, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return x, rng.permutation(np.arange(count) % classes)


@pytest.fixture(params=FAMILIES)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> cifar.Family:
    """A family with the official layout and few images."""
    family = getattr(cifar, FAMILIES[request.param])
    reduced = dataclasses.replace(
        family,
        train_size=PER_BATCH * 5,
        test_size=PER_BATCH,
        # of uniform noise, so that the alarm about lossy copies is silent
        official_std=(0.289,) * 3,
    )
    monkeypatch.setattr(cifar, FAMILIES[request.param], reduced)
    monkeypatch.setattr(cifar, "DEVIATION_TOLERANCE", 0.01)
    return reduced


def write_binary(folder: Path, family: cifar.Family) -> tuple[np.ndarray, ...]:
    """Official files; CIFAR-100 has a coarse label before the fine one."""
    folder.mkdir(parents=True)
    train_x, train_y = samples(0, family.train_size, family.num_classes)
    test_x, test_y = samples(1, family.test_size, family.num_classes)
    records = family.train_size // len(family.train)
    for place, name in enumerate(family.train):
        rows = slice(place * records, (place + 1) * records)
        write_records(folder / name, family, train_x[rows], train_y[rows])
    write_records(folder / family.test, family, test_x, test_y)
    return train_x, train_y, test_x, test_y


def write_records(path: Path, family: cifar.Family, x: np.ndarray, y: np.ndarray) -> None:
    coarse = np.full((len(y), family.label_bytes - 1), 19, np.uint8)
    records = [coarse, y[:, None].astype(np.uint8), x.reshape(len(x), -1)]
    np.concatenate(records, axis=1).tofile(path)


def encode(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(buffer, "png")
    return buffer.getvalue()


def write_parquet(path: Path, x: np.ndarray, y: np.ndarray, label: str = "label") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [{"bytes": encode(pixels), "path": None} for pixels in x]
    pq.write_table(pa.table({"img": pictures, label: y.tolist()}), path)


def equal(dataset: Dataset, expected: tuple[np.ndarray, ...]) -> bool:
    found = (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
    return all(np.array_equal(a.numpy(), b) for a, b in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("error")
def test_official_binary_files(small: cifar.Family, tmp_path: Path):
    expected = write_binary(tmp_path / small.name / small.folder, small)
    dataset = load(small.name, tmp_path)
    assert equal(dataset, expected)
    assert (dataset.num_classes, dataset.augment_pad, dataset.flip) == (small.num_classes, 4, True)
    assert (dataset.mean, dataset.std) == small.normalise
    (tmp_path / small.name / small.folder).rename(tmp_path / "away")
    (tmp_path / small.name).rmdir()
    (tmp_path / "away").rename(tmp_path / small.name)
    assert equal(load(small.name, tmp_path), expected)


@pytest.mark.parametrize("size", [16, 8])
def test_shrunken_images_are_means_of_squares(small: cifar.Family, tmp_path: Path, size: int):
    train_x, *_ = write_binary(tmp_path / small.name / small.folder, small)
    dataset = load(small.name, tmp_path, size=size)
    block = 32 // size
    means = train_x.reshape(-1, 3, size, block, size, block).mean((3, 5))
    assert (np.abs(dataset.train_x.numpy() - means) <= 0.5).all()
    assert dataset.test_x.shape == (small.test_size, 3, size, size)
    assert dataset.augment_pad == 4 // block
    whole = load(small.name, tmp_path)
    assert dataset.fingerprint != whole.fingerprint
    assert (dataset.mean, dataset.std) == (whole.mean, whole.std)


def test_size_that_does_not_divide_is_refused(small: cifar.Family, tmp_path: Path):
    write_binary(tmp_path / small.name / small.folder, small)
    with pytest.raises(DataError, match=r"size of cifar.* is 20; choose 32, 16 or 8"):
        load(small.name, tmp_path, size=20)


def test_binary_files_that_are_cut_missing_or_mislabelled(small: cifar.Family, tmp_path: Path):
    folder = tmp_path / small.name / small.folder
    write_binary(folder, small)
    victim = folder / small.train[-1]
    content = victim.read_bytes()
    # a whole number of records: nothing but the expected size tells
    for cut in (len(content) - 5, len(content) - 3072 - small.label_bytes, 0):
        victim.write_bytes(content[:cut])
        with pytest.raises(DataError, match=f"{victim.name} has {cut} bytes instead of"):
            load(small.name, tmp_path)
    victim.write_bytes(b"\xff" * len(content))
    with pytest.raises(DataError, match=r"labels in .* go from \d+ to 255"):
        load(small.name, tmp_path)
    victim.write_bytes(content)
    (folder / small.test).unlink()
    with pytest.raises(DataError, match=f"{small.test} of {small.name} is missing"):
        load(small.name, tmp_path)


@pytest.mark.filterwarnings("error")
def test_hub_parquet_in_shards_and_whole(small: cifar.Family, tmp_path: Path):
    label = small.label_column[0]
    train = samples(0, small.train_size, small.num_classes)
    test = samples(1, small.test_size, small.num_classes)
    folder = tmp_path / small.name
    for shard in range(2):
        part = slice(shard * 50, shard * 50 + 50)
        path = folder / "data" / f"train-0000{shard}-of-00002.parquet"
        write_parquet(path, train[0][part], train[1][part], label)
    write_parquet(folder / "test.parquet", *test, label)
    assert equal(load(small.name, tmp_path), (*train, *test))


def test_parquet_is_decoded_once_and_again_when_it_changes(
    small: cifar.Family, tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    train = samples(0, small.train_size, small.num_classes)
    test = samples(1, small.test_size, small.num_classes)
    folder = tmp_path / small.name
    write_parquet(folder / "train.parquet", *train)
    write_parquet(folder / "test.parquet", *test)
    decoded = []
    read_images = cifar.parquet.read_images
    monkeypatch.setattr(
        cifar.parquet, "read_images", lambda *a, **k: decoded.append(a) or read_images(*a, **k)
    )
    first = load(small.name, tmp_path)
    assert len(decoded) == 2
    assert equal(load(small.name, tmp_path), (*train, *test))
    assert len(decoded) == 2
    # a cache that was cut is made anew
    [kept] = private_cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:5000])
    with pytest.warns(DataWarning, match="made anew"):
        assert load(small.name, tmp_path).fingerprint == first.fingerprint
    assert len(decoded) == 4
    write_parquet(folder / "test.parquet", *samples(2, small.test_size, small.num_classes))
    assert load(small.name, tmp_path).fingerprint != first.fingerprint


def test_cache_that_cannot_be_written_costs_only_time(
    small: cifar.Family, tmp_path: Path, private_cache: Path
):
    private_cache.write_text("a file where the folder should be")
    for name, seed, count in (("train", 0, small.train_size), ("test", 1, small.test_size)):
        write_parquet(
            tmp_path / small.name / f"{name}.parquet", *samples(seed, count, small.num_classes)
        )
    with pytest.warns(DataWarning, match="set SPECGRAD_CACHE"):
        assert len(load(small.name, tmp_path).train_x) == small.train_size


def test_reduced_sets_are_called_so(small: cifar.Family, tmp_path: Path):
    for part, count in (("train", 30), ("test", small.test_size)):
        write_parquet(
            tmp_path / small.name / f"{part}.parquet", *samples(0, count, small.num_classes)
        )
    with pytest.warns(DataWarning, match="30 training images instead of 100"):
        assert len(load(small.name, tmp_path).train_x) == 30


@pytest.mark.filterwarnings("error")
def test_image_folders(small: cifar.Family, tmp_path: Path):
    train = samples(0, small.train_size, small.num_classes)
    test = samples(1, small.test_size, small.num_classes)
    for part, (x, y) in (("train", train), ("test", test)):
        for place, (pixels, label) in enumerate(zip(x, y, strict=True)):
            path = tmp_path / small.name / part / str(label) / f"{place:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels))
    by_class = [np.argsort(y, kind="stable") for _, y in (train, test)]
    expected = [array[order] for split, order in zip((train, test), by_class, strict=True)
                for array in split]  # fmt: skip
    assert equal(load(small.name, tmp_path), tuple(expected))
    (tmp_path / small.name / "train" / "1000").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load(small.name, tmp_path)
    stray = tmp_path / small.name / "train" / "1000" / "0.png"
    stray.write_bytes(encode(samples(0, 1, 1)[0][0]))
    with pytest.raises(DataError, match="class folders instead of"):
        load(small.name, tmp_path)


@pytest.mark.parametrize("harm", ["cut file", "cut image", "no bytes", "column", "size", "labels"])
def test_parquet_that_cannot_be_used(harm: str, tmp_path: Path):
    x, y = samples(0, 20, 10)
    path = tmp_path / "cifar10" / "train.parquet"
    write_parquet(tmp_path / "cifar10" / "test.parquet", x, y)
    write_parquet(path, x, y)
    pictures = [{"bytes": encode(pixels), "path": None} for pixels in x]
    labels: list[object] = y.tolist()
    if harm == "cut file":
        path.write_bytes(path.read_bytes()[:-100])
        complaint = "cannot be read"
    else:
        if harm == "cut image":
            pictures[3]["bytes"] = pictures[3]["bytes"][:200]
            complaint = r"image 3 of .*train\.parquet cannot be decoded"
        elif harm == "no bytes":
            pictures[3]["bytes"] = None
            complaint = r"row 3 of .* has no image bytes"
        elif harm == "size":
            pictures[3]["bytes"] = encode(x[3][:, :16])
            complaint = "has 16 x 32 pixels and the first one 32 x 32"
        elif harm == "labels":
            labels = [str(label) for label in labels]
            complaint = "labels that are no whole numbers"
        else:
            complaint = "has the columns img, other; expected label"
        name = "other" if harm == "column" else "label"
        pq.write_table(pa.table({"img": pictures, name: labels}), path)
    with pytest.raises(DataError, match=complaint):
        load("cifar10", tmp_path)


def test_alarm_about_lossy_copies(small: cifar.Family, tmp_path: Path, monkeypatch):
    write_binary(tmp_path / small.name / small.folder, small)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(small.name, tmp_path)
    monkeypatch.setattr(cifar, "DEVIATION_TOLERANCE", 1e-5)
    with pytest.warns(DataWarning, match="probably re-encoded with loss"):
        load(small.name, tmp_path)


def test_alarm_tells_the_known_jpeg_copy_from_the_official_images():
    """The published deviations of a JPEG copy of CIFAR-10, and those of the original."""
    jpeg = np.array([0.2452, 0.2428, 0.2606])
    exact = np.array([0.24703, 0.24349, 0.26159])
    official = np.array(cifar.CIFAR10.official_std)
    assert np.abs(jpeg - official).max() > cifar.DEVIATION_TOLERANCE
    assert np.abs(exact - official).max() < cifar.DEVIATION_TOLERANCE


BASES = 50


@pytest.fixture(params=["cifar10_c", "cifar100_c"])
def corrupted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """Corruption files of 50 base images: pixel (0, 0) is the base, (0, 1) type and severity."""
    monkeypatch.setattr(cifar, "BASES", BASES)
    name = request.param
    folder = tmp_path / name / {"cifar10_c": "CIFAR-10-C", "cifar100_c": "CIFAR-100-C"}[name]
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.tile(np.arange(BASES) % 10, 5))
    for kind, corruption in enumerate(STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS):
        images = np.zeros((5, BASES, 32, 32, 3), np.uint8)
        images[:, :, 0, 0] = np.arange(BASES)[:, None]
        images[:, :, 0, 1] = kind * 10 + np.arange(1, 6)[:, None, None]
        np.save(folder / f"{corruption}.npy", images.reshape(-1, 32, 32, 3))
    return name, tmp_path


@pytest.mark.filterwarnings("ignore::specgrad_data.DataWarning")
def test_corruptions_divide_base_images(corrupted: tuple[str, Path]):
    name, root = corrupted
    dataset = load(name, root)
    assert dataset.domain_names == STANDARD_CORRUPTIONS
    assert dataset.train_x.shape == (15 * 40, 3, 32, 32)
    assert dataset.test_x.shape == (15 * 10, 3, 32, 32)
    assert dataset.domains is not None
    assert dataset.bases is not None
    assert dataset.test_domains is not None
    # what the pixels say is what the fields say
    assert torch.equal(dataset.train_x[:, 0, 0, 0].long(), dataset.bases)
    assert torch.equal(dataset.train_x[:, 2, 0, 1].long(), dataset.domains * 10 + 3)
    assert torch.equal(dataset.test_x[:, 1, 0, 1].long(), dataset.test_domains * 10 + 3)
    assert torch.equal(dataset.train_y, dataset.bases % 10)
    test_bases = dataset.test_x[:, 0, 0, 0].long()
    assert torch.equal(dataset.test_y, test_bases % 10)
    assert not set(test_bases.tolist()) & set(dataset.bases.tolist())
    assert torch.bincount(dataset.test_y[:10]).tolist() == [1] * 10


@pytest.mark.filterwarnings("ignore::specgrad_data.DataWarning")
def test_corruptions_by_severity_and_name(corrupted: tuple[str, Path]):
    name, root = corrupted
    dataset = load(name, root, severity=5, corruptions=("fog", "saturate"))
    assert dataset.domain_names == ("fog", "saturate")
    assert set(dataset.train_x[:, 0, 0, 1].tolist()) == {9 * 10 + 5, 18 * 10 + 5}
    assert load(name, root, severity=5, corruptions="fog,saturate").fingerprint == (
        dataset.fingerprint
    )
    for options, complaint in (
        ({"severity": 0}, "severity is 0; choose 1 to 5"),
        ({"corruptions": ("rain",)}, "no corruption 'rain'"),
        ({"corruptions": ("fog", "fog")}, "each type once"),
        ({"corruptions": ()}, "at least one type"),
    ):
        with pytest.raises(DataError, match=complaint):
            load(name, root, **options)


@pytest.mark.filterwarnings("ignore::specgrad_data.DataWarning")
def test_corrupted_images_shrink_as_others_do(corrupted: tuple[str, Path]):
    name, root = corrupted
    whole, shrunk = load(name, root), load(name, root, size=16)
    assert shrunk.train_x.shape == (15 * 40, 3, 16, 16)
    squares = whole.test_x.float().unflatten(-1, (16, 2)).unflatten(-3, (16, 2)).mean((-3, -1))
    assert torch.equal(shrunk.test_x, (squares + 0.5).floor().to(torch.uint8))
    assert shrunk.bases is not None
    assert torch.equal(shrunk.bases, whole.bases)
    assert shrunk.fingerprint != whole.fingerprint


def test_regenerated_corruptions_are_called_so(corrupted: tuple[str, Path]):
    with pytest.warns(DataWarning, match="regenerated"):
        load(*corrupted)


@pytest.mark.filterwarnings("ignore::specgrad_data.DataWarning")
def test_corruption_files_that_cannot_be_used(corrupted: tuple[str, Path]):
    name, root = corrupted
    [folder] = (root / name).iterdir()
    fog = folder / "fog.npy"
    whole = fog.read_bytes()
    fog.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        load(name, root)
    np.save(fog, np.zeros((5 * BASES, 32, 32, 3)))
    with pytest.raises(DataError, match="dtype float64"):
        load(name, root)
    np.save(fog, np.array([{"an": "object"}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        load(name, root)
    fog.unlink()
    with pytest.raises(DataError, match=rf"fog\.npy of {name} is missing"):
        load(name, root)
    np.save(folder / "labels.npy", np.zeros(7))
    with pytest.raises(DataError, match=r"labels\.npy has shape \(7,\)"):
        load(name, root)


@pytest.mark.slow
def test_real_cifar10_test_images(real_data: Path):
    path = real_data / "cifar10" / "test.parquet"
    if not path.exists():
        pytest.skip("no CIFAR-10 parquet in $SPECGRAD_DATA or ../shared/data")
    split = cifar.parquet.read_images([path], "img", "label", mode="RGB")
    assert split.x.shape == (10_000, 3, 32, 32)
    assert np.bincount(split.y).tolist() == [1000] * 10
    mean, std = cifar.channel_statistics(torch.from_numpy(split.x))
    np.testing.assert_allclose(mean, cifar.CIFAR10.normalise[0], atol=6e-3)
    np.testing.assert_allclose(std, cifar.CIFAR10.normalise[1], atol=3e-3)


def test_real_cifar_parquet_in_part(real_data: Path):
    """The first images of the training files, without decoding the rest."""
    from specgrad_data import images, parquet

    for name, label in (("cifar10", "label"), ("cifar100", "fine_label")):
        path = real_data / name / "train.parquet"
        if not path.exists():
            pytest.skip("no CIFAR parquet in $SPECGRAD_DATA or ../shared/data")
        rows = parquet.read_rows([path], ["img", label])
        taken = [next(rows) for _ in range(20)]
        pixels = images.decode_images(((n, row[0]["bytes"]) for n, row in taken), 20, mode="RGB")
        assert pixels.shape == (20, 3, 32, 32)
        assert pixels.std() > 30
        assert all(isinstance(row[1], int) for _, row in taken)
