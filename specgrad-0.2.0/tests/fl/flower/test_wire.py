"""Messages: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import contextlib
import zlib

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from specgrad_fl.flower import wire

names = st.text("abc/-_0", min_size=1, max_size=8)
vectors = arrays.arrays(
    st.sampled_from([np.float32, np.float64]), st.integers(0, 40), elements=st.floats(width=32)
)
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5)
facts = st.dictionaries(st.text(max_size=5), scalars | st.lists(scalars, max_size=3), max_size=4)


@given(facts, st.dictionaries(names, vectors, max_size=4))
def test_packed_and_unpacked(told, sent):
    content = recorddict_from_proto(recorddict_to_proto(wire.pack(told, sent)))
    found, got = wire.unpack(content)
    assert found == told
    assert list(got) == list(sent)
    for name, array in sent.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)
    plain = sum(array.nbytes for array in sent.values())
    assert plain <= wire.size(content) <= plain + 200 * len(sent) + 1000


values = st.binary(max_size=40) | st.integers(0, 9) | st.binary(max_size=20).map(zlib.compress)
records = (
    st.builds(ConfigRecord, st.dictionaries(st.sampled_from(["json", "x"]), values, max_size=2))
    | st.builds(MetricRecord, st.dictionaries(names, st.floats(), max_size=2))
    | st.builds(lambda vectors: ArrayRecord(vectors), st.lists(vectors, max_size=2))
)
parts = st.sampled_from([wire.ARRAYS, wire.FACTS, "model"])


@given(st.dictionaries(parts, records, max_size=3))
def test_anything_else_is_refused_and_never_crashes(parts):
    content = RecordDict(parts)
    wire.size(content)
    with contextlib.suppress(wire.WireError):
        told, _ = wire.unpack(content)
        assert isinstance(told, dict)
