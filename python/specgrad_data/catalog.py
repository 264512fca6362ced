"""Public data sets: descriptions, files, checksums and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteFile:
    """One file of an official host; ``size`` in bytes and checksums where they are published.

    Without a published SHA-256 the first one that is downloaded is kept for all later ones.
    """

    name: str
    url: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set by name.

    loader: module and function that read it; by default ``load`` in a module of its name
    files: what ``fetch`` downloads into the folder named like the data set
    provides: files that an archive unpacks there, and their sizes where they are known
    also: other files that the loader accepts, in words
    by_hand: how the files are had where nothing can be downloaded, in one clause
    """

    name: str
    what: str
    loader: str = ""
    files: tuple[RemoteFile, ...] = ()
    provides: Mapping[str, int | None] = field(default_factory=dict)
    also: str = ""
    by_hand: str = ""


STANDARD_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur",
    "motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast",
    "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def _at(
    address: str, *files: tuple[str, int | None, str | None, str | None]
) -> tuple[RemoteFile, ...]:
    """Name, size, MD5 and SHA-256 of files of one host, whose address has ``{}`` for names."""
    return tuple(
        RemoteFile(name, address.format(name), size, md5, sha256)
        for name, size, md5, sha256 in files
    )


def _corrupted(number: int, record: int, size: int, md5: str, sha256: str | None) -> Entry:
    """CIFAR-C: for each corruption 50,000 images of 3,072 bytes behind a header of 128."""
    title = f"CIFAR-{number}-C"
    images = [f"{title}/{kind}.npy" for kind in STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS]
    return Entry(
        f"cifar{number}_c",
        f"{title}: the CIFAR-{number} test images under 19 corruptions at 5 severities",
        loader="cifar.load_corrupted",
        files=_at(f"{_ZENODO}/{record}/files/{{}}?download=1", (f"{title}.tar", size, md5, sha256)),
        provides={**dict.fromkeys(images, 50_000 * 3072 + 128), f"{title}/labels.npy": None},
    )


_KRIZ = "https://www.cs.toronto.edu/~kriz/{}"
_ZENODO = "https://zenodo.org/records"

_ALL = (
    Entry("digits", "handwritten digits, 1,797 grey images of 8 x 8, inside scikit-learn"),
    Entry(
        "cifar10",
        "CIFAR-10: 60,000 colour images of 32 x 32, 10 classes",
        loader="cifar.load",
        files=_at(
            _KRIZ,
            (
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        provides={
            f"cifar-10-batches-bin/{batch}.bin": 30_730_000
            for batch in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
        },
        also="train.parquet and test.parquet (columns img, label), or folders of images "
        "train/CLASS and test/CLASS",
    ),
    Entry(
        "cifar100",
        "CIFAR-100: 60,000 colour images of 32 x 32, 100 classes",
        loader="cifar.load",
        files=_at(
            _KRIZ,
            (
                "cifar-100-binary.tar.gz",
                168_513_733,
                "03b5dce01913d631647c71ecec9e9cb8",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        provides={
            "cifar-100-binary/train.bin": 153_700_000,
            "cifar-100-binary/test.bin": 30_740_000,
        },
        also="train.parquet and test.parquet (columns img, fine_label), or folders of images "
        "train/CLASS and test/CLASS",
    ),
    Entry(
        "tiny_imagenet",
        "Tiny-ImageNet: 100,000 colour images of 64 x 64, 200 classes; tested on its 10,000 "
        "validation images",
        files=_at(
            "https://cs231n.stanford.edu/{}",
            (
                "tiny-imagenet-200.zip",
                248_100_043,
                "90528d7ca1a48142e341f4ef8d21d0de",
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        ),
        provides={
            "tiny-imagenet-200/wnids.txt": None,
            "tiny-imagenet-200/val/val_annotations.txt": None,
        },
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
        loader="mnist.load_mnist_by_writer",
        files=_at(
            "https://raw.githubusercontent.com/facebookresearch/qmnist/master/{}",
            ("qmnist-train-images-idx3-ubyte.gz", None, "ed72d4157d28c017586c42bc6afe6370", None),
            (
                "qmnist-train-labels-idx2-int.gz",
                463_024,
                "0058f8dd561b90ffdd0f734c6a30e5e4",
                "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            ),
            ("qmnist-test-images-idx3-ubyte.gz", None, "1394631089c404de565df7b7aeaf9412", None),
            (
                "qmnist-test-labels-idx2-int.gz",
                526_800,
                "5b5b05890a5e13444e108efe57b788aa",
                "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
            ),
        ),
        also="mnist.npz (x_train, y_train, x_test, y_test) and writer_ids.npz (writer_train)",
    ),
    Entry(
        "bloodmnist",
        "BloodMNIST: 17,092 colour images of 28 x 28, 8 kinds of blood cells",
        loader="mnist.load_bloodmnist",
        files=_at(
            f"{_ZENODO}/10519652/files/{{}}?download=1",
            (
                "bloodmnist.npz",
                None,
                "7053d0359d879ad8a5505303e11de1dc",
                "062023e186f537e26b3c21ea3b2614ddfc475e8a14825dfd20663bbb7e37bddc",
            ),
        ),
    ),
    Entry(
        "yahoo_answers",
        "Yahoo! Answers: 1,460,000 questions with their best answer, 10 topics",
        files=_at(
            "https://s3.amazonaws.com/fast-ai-nlp/{}",
            (
                "yahoo_answers_csv.tgz",
                319_476_345,
                None,
                "2d4277855faf8b35259009425fa8f7fe1888b5644b47165508942d000f4c96ae",
            ),
        ),
        provides={"yahoo_answers_csv/train.csv": None, "yahoo_answers_csv/test.csv": None},
        also="train.parquet and test.parquet (columns topic, question_title, question_content, "
        "best_answer)",
    ),
    Entry(
        "fashion_mnist",
        "Fashion-MNIST: 70,000 grey images of 28 x 28, 10 classes",
        loader="mnist.load_fashion_mnist",
        files=_at(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{}",
            (
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                29_515,
                "25c81989df183df01b3e8a0aad5dffbe",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "bef4ecab320f06d8554ea6380940ec79",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "bb300cfdad3c16e7a12a480ee83cd310",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
    _corrupted(
        10,
        2535967,
        2_918_471_680,
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
    ),
    _corrupted(100, 3555552, 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3", None),
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
        names = [file.name for file in entry.files]
        unpacked = " and run it offline to unpack" if any(map(is_archive, names)) else ""
        ways = [f"run `specgrad-fl data fetch {name}`", f"put {', '.join(names)} there{unpacked}"]
    if entry.by_hand:
        ways.append(entry.by_hand)
    if entry.also:
        ways.append(f"put there {entry.also}")
    return ", or ".join(ways)


def is_archive(name: str) -> bool:
    """True for a file that is unpacked after the download; a lone ``.gz`` is read as it is.

    >>> is_archive("cifar-10-binary.tar.gz"), is_archive("train-images-idx3-ubyte.gz")
    (True, False)
    """
    return name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))
