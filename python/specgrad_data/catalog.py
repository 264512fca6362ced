"""The facts about public data sets: what they are, their files, checksums and addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file of an official host; ``size`` in bytes and checksums where they are published."""

    name: str
    url: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class LocalFile:
    """One file that a loader reads, relative to the data set's folder."""

    path: str
    size: int | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set by name.

    files: what ``fetch`` downloads into the folder named like the data set
    provides: what is there afterwards, archives unpacked
    also: other files that the loader accepts, in words
    by_hand: how the files are had where nothing can be downloaded, in one clause
    """

    name: str
    what: str
    files: tuple[RemoteFile, ...] = ()
    provides: tuple[LocalFile, ...] = ()
    also: str = ""
    by_hand: str = ""


_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_ZENODO = "https://zenodo.org/records/"

STANDARD_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur",
    "motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast",
    "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

_CIFAR_BATCHES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]


def _corrupted(folder: str, labels_md5: str) -> tuple[LocalFile, ...]:
    """The files of CIFAR-C: 50,000 images of 3,072 bytes behind a header of 128."""
    images = [
        LocalFile(f"{folder}/{kind}.npy", size=50_000 * 3072 + 128)
        for kind in STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS
    ]
    return (*images, LocalFile(f"{folder}/labels.npy", md5=labels_md5))


_ALL = (
    Entry("digits", "handwritten digits, 1,797 grey images of 8 x 8, inside scikit-learn"),
    Entry(
        "cifar10",
        "CIFAR-10: 60,000 colour images of 32 x 32, 10 classes",
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                _KRIZ + "cifar-10-binary.tar.gz",
                size=170_052_171,
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        provides=tuple(
            LocalFile(f"cifar-10-batches-bin/{batch}", size=30_730_000) for batch in _CIFAR_BATCHES
        ),
        also="train.parquet and test.parquet (columns img, label), or folders of images "
        "train/CLASS and test/CLASS",
    ),
    Entry(
        "cifar100",
        "CIFAR-100: 60,000 colour images of 32 x 32, 100 classes",
        files=(
            RemoteFile(
                "cifar-100-binary.tar.gz",
                _KRIZ + "cifar-100-binary.tar.gz",
                size=168_513_733,
                md5="03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        provides=(
            LocalFile(
                "cifar-100-binary/train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"
            ),
            LocalFile("cifar-100-binary/test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898"),
        ),
        also="train.parquet and test.parquet (columns img, fine_label), or folders of images "
        "train/CLASS and test/CLASS",
    ),
    Entry(
        "tiny_imagenet",
        "Tiny-ImageNet: 100,000 colour images of 64 x 64, 200 classes; tested on its 10,000 "
        "validation images",
        files=(
            RemoteFile(
                "tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                size=248_100_043,
                md5="90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        provides=(
            LocalFile("tiny-imagenet-200/wnids.txt"),
            LocalFile("tiny-imagenet-200/val/val_annotations.txt"),
        ),
        also="train.parquet and valid.parquet (columns image, label)",
    ),
    Entry(
        "femnist",
        "FEMNIST: handwritten characters of 28 x 28, 62 classes, by writer",
        also="train.parquet (columns image, writer_id, character)",
        by_hand="write all_data_0.json and the files after it with the LEAF preprocessing scripts "
        "from NIST Special Database 19 (by_class.zip and by_write.zip)",
    ),
    Entry(
        "mnist_by_writer",
        "MNIST with the writer of each image (QMNIST): 70,000 grey images of 28 x 28, 10 classes",
        files=(
            RemoteFile(
                "qmnist-train-images-idx3-ubyte.gz",
                _QMNIST + "qmnist-train-images-idx3-ubyte.gz",
                md5="ed72d4157d28c017586c42bc6afe6370",
            ),
            RemoteFile(
                "qmnist-train-labels-idx2-int.gz",
                _QMNIST + "qmnist-train-labels-idx2-int.gz",
                md5="0058f8dd561b90ffdd0f734c6a30e5e4",
            ),
            RemoteFile(
                "qmnist-test-images-idx3-ubyte.gz",
                _QMNIST + "qmnist-test-images-idx3-ubyte.gz",
                md5="1394631089c404de565df7b7aeaf9412",
            ),
            RemoteFile(
                "qmnist-test-labels-idx2-int.gz",
                _QMNIST + "qmnist-test-labels-idx2-int.gz",
                md5="5b5b05890a5e13444e108efe57b788aa",
            ),
        ),
        also="mnist.npz (x_train, y_train, x_test, y_test) and writer_ids.npz (writer_train)",
    ),
    Entry(
        "bloodmnist",
        "BloodMNIST: 17,092 colour images of 28 x 28, 8 kinds of blood cells",
        files=(
            RemoteFile(
                "bloodmnist.npz",
                _ZENODO + "10519652/files/bloodmnist.npz?download=1",
                md5="7053d0359d879ad8a5505303e11de1dc",
            ),
        ),
    ),
    Entry(
        "yahoo_answers",
        "Yahoo! Answers: 1,460,000 questions with their best answer, 10 topics",
        files=(
            RemoteFile(
                "yahoo_answers_csv.tar.gz",
                "https://drive.usercontent.google.com/download"
                "?id=0Bz8a_Dbh9Qhbd2JNdDBsQUdocVU&export=download&confirm=t",
                md5="f3f9899b997a42beb24157e62e3eea8d",
            ),
        ),
        provides=(
            LocalFile("yahoo_answers_csv/train.csv"),
            LocalFile("yahoo_answers_csv/test.csv"),
        ),
        also="train.parquet and test.parquet (columns topic, question_title, question_content, "
        "best_answer)",
    ),
    Entry(
        "fashion_mnist",
        "Fashion-MNIST: 70,000 grey images of 28 x 28, 10 classes",
        files=(
            RemoteFile(
                "train-images-idx3-ubyte.gz",
                _FASHION + "train-images-idx3-ubyte.gz",
                size=26_421_880,
                md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte.gz",
                _FASHION + "train-labels-idx1-ubyte.gz",
                size=29_515,
                md5="25c81989df183df01b3e8a0aad5dffbe",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz",
                _FASHION + "t10k-images-idx3-ubyte.gz",
                size=4_422_102,
                md5="bef4ecab320f06d8554ea6380940ec79",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte.gz",
                _FASHION + "t10k-labels-idx1-ubyte.gz",
                size=5_148,
                md5="bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    Entry(
        "cifar10_c",
        "CIFAR-10-C: the CIFAR-10 test images under 19 corruptions at 5 severities",
        files=(
            RemoteFile(
                "CIFAR-10-C.tar",
                _ZENODO + "2535967/files/CIFAR-10-C.tar?download=1",
                size=2_918_471_680,
                md5="56bf5dcef84df0e2308c6dcbcbbd8499",
            ),
        ),
        provides=_corrupted("CIFAR-10-C", "c439b113295ed5254878798ffe28fd54"),
    ),
    Entry(
        "cifar100_c",
        "CIFAR-100-C: the CIFAR-100 test images under 19 corruptions at 5 severities",
        files=(
            RemoteFile(
                "CIFAR-100-C.tar",
                _ZENODO + "3555552/files/CIFAR-100-C.tar?download=1",
                size=2_918_473_216,
                md5="11f0ed0f1191edbf9fa23466ae6021d3",
            ),
        ),
        provides=_corrupted("CIFAR-100-C", "bb4026e9ce52996b95f439544568cdb2"),
    ),
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}


def where_to_get(name: str) -> str:
    """The remedy for a missing file, as the end of a sentence.

    >>> where_to_get("cifar10")  # doctest: +ELLIPSIS
    'run `specgrad-fl data fetch cifar10`, or put cifar-10-binary.tar.gz there and run it offline...
    """
    entry = ENTRIES[name]
    ways = []
    if entry.files:
        archives = [file.name for file in entry.files if is_archive(file.name)]
        ways.append(f"run `specgrad-fl data fetch {name}`")
        if archives:
            ways[-1] += f", or put {' and '.join(archives)} there and run it offline to unpack"
        else:
            ways.append(f"put {', '.join(file.name for file in entry.files)} there")
    if entry.by_hand:
        ways.append(entry.by_hand)
    if entry.also:
        ways.append(f"put there {entry.also}")
    return ", or ".join(ways)


def is_archive(name: str) -> bool:
    """Whether a downloaded file is unpacked; a lone ``.gz`` is read as it is.

    >>> is_archive("cifar-10-binary.tar.gz"), is_archive("train-images-idx3-ubyte.gz")
    (True, False)
    """
    return name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))
