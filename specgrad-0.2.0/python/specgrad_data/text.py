"""Text to token ids: a small tokenizer, and a vocabulary counted on training data alone."""

from __future__ import annotations

import html
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from specgrad_data.dataset import Split
from specgrad_data.errors import DataError

PAD, UNKNOWN = 0, 1
VOCABULARY = 30_000
MAX_LENGTH = 128
# the widest window of TextCNN
SHORTEST = 5
_LINE_BREAK = re.compile(r"\\n|<br\s*/?>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# starts a new pass over texts and their labels, so that millions need not be in memory
Samples = Callable[[], Iterable[tuple[str, int]]]


def tokenize(text: str) -> list[str]:
    r"""Words in lower case; an apostrophe within a word belongs to it.

    >>> tokenize(r"Why doesn't it\nrain &amp; snow?")
    ['why', "doesn't", 'it', 'rain', 'snow']
    """
    return _WORD.findall(html.unescape(_LINE_BREAK.sub(" ", text)).lower())


def count_vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """Ids of the most frequent words; 0 is padding and 1 any other word.

    Equal counts are ordered alphabetically, so that the ids do not depend on the order of texts.

    >>> count_vocabulary(["b a b", "c a b"], size=4)
    {'b': 2, 'a': 3}
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenize(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: rank + 2 for rank, word in enumerate(ranked[: size - 2])}


def encode(samples: Iterable[tuple[str, int]], vocabulary: dict[str, int], length: int) -> Split:
    """``[N, length]`` ids: longer texts are cut, shorter ones padded with 0.

    A text without any word is one unknown word.

    >>> encode([("b c", 0), ("!", 1)], {"b": 2}, length=3).x
    array([[2, 1, 0],
           [1, 0, 0]], dtype=int32)
    """
    ids, labels = array("i"), array("q")
    for text, label in samples:
        row = [vocabulary.get(word, UNKNOWN) for word in tokenize(text)[:length]] or [UNKNOWN]
        ids.extend(row + [PAD] * (length - len(row)))
        labels.append(label)
    return Split(np.array(ids, np.int32).reshape(-1, length), np.array(labels, np.int64))


def check_sizes(vocabulary: int, max_length: int) -> None:
    """Refuse a vocabulary or a length that leaves nothing to learn from."""
    if vocabulary < 3:
        raise DataError(f"vocabulary is {vocabulary}; choose 3 or more, such as {VOCABULARY}")
    if max_length < SHORTEST:
        raise DataError(f"max_length is {max_length}; choose {SHORTEST} words or more")


def encode_splits(
    train: Samples, test: Samples, vocabulary: int, max_length: int
) -> tuple[Split, Split]:
    """Both splits as ids of the training split's vocabulary."""
    words = count_vocabulary((text for text, _ in train()), vocabulary)
    return encode(train(), words, max_length), encode(test(), words, max_length)
