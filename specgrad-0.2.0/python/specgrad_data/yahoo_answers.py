"""Yahoo! Answers: csv files of four columns, or hub parquet; title, question and best answer."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from specgrad_data import parquet, text
from specgrad_data.cache import cached
from specgrad_data.dataset import Dataset, Split, build
from specgrad_data.errors import DataError
from specgrad_data.files import readable, required

NAME = "yahoo_answers"
NUM_CLASSES = 10
PARQUET_COLUMNS = ["topic", "question_title", "question_content", "best_answer"]


def load(
    folder: Path, vocabulary: int = text.VOCABULARY, max_length: int = text.MAX_LENGTH
) -> Dataset:
    """1,400,000 training and 60,000 test texts of 10 topics.

    vocabulary: token ids, counting padding (0) and unknown (1)
    max_length: words of each text that are kept
    """
    text.check_sizes(vocabulary, max_length)
    unpacked = folder / "yahoo_answers_csv"
    where = unpacked if (unpacked / "train.csv").is_file() else folder
    if (where / "train.csv").is_file():
        train, test = [where / "train.csv"], [required(NAME, where / "test.csv")]
        read = _read_csv
    else:
        train, test = parquet.find_parts(NAME, folder, "test")
        read = _read_parquet
    sizes = {"vocabulary": vocabulary, "max_length": max_length}

    def decode() -> tuple[Split, Split]:
        return text.encode_splits(lambda: read(train), lambda: read(test), **sizes)

    splits = cached(NAME, train + test, decode, **sizes)
    return build(NAME, *splits, num_classes=NUM_CLASSES, vocabulary=vocabulary)


def _read_csv(files: list[Path]) -> Iterator[tuple[str, int]]:
    """Texts and labels from 0; the file counts classes from 1."""
    [path] = files
    with readable(path, csv.Error), open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        for row in reader:
            if len(row) != 4 or not row[0].isdecimal() or not 1 <= int(row[0]) <= NUM_CLASSES:
                raise DataError(
                    f"{path} line {reader.line_num} is not a class from 1 to {NUM_CLASSES} and "
                    "three texts; the file is damaged or another one, get it again"
                )
            yield " ".join(row[1:]), int(row[0]) - 1


def _read_parquet(files: list[Path]) -> Iterator[tuple[str, int]]:
    for name, (label, *texts) in parquet.read_rows(files, PARQUET_COLUMNS):
        if not isinstance(label, int) or not 0 <= label < NUM_CLASSES:
            raise DataError(f"row {name} has the topic {label!r}; expected 0 to {NUM_CLASSES - 1}")
        yield " ".join(parquet.as_text(part, name) for part in texts), label
