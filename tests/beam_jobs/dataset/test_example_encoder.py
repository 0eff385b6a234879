"""The hand-written encoder against the one of protobuf, which this release no longer pays for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow.core.example import example_pb2, feature_pb2

from beam_jobs.dataset import record

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)  # half a surrogate pair is no UTF-8
LISTS = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=40), max_size=6)),
    st.tuples(st.just("float"), st.lists(st.floats(), max_size=6)),
    st.tuples(st.just("int64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)),
)
LARGEST, LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)


def by_protobuf(features) -> bytes:
    """The entries as protobuf serialises each, in the order of their names: versions of it order a map differently."""
    entries = b""
    for name in sorted(features):
        kind, values = features[name]
        one = feature_pb2.Features()
        chosen = getattr(one.feature[name], f"{kind}_list")
        chosen.SetInParent()  # an empty list is a list, not a feature without a kind
        chosen.value.extend(values)
        entries += one.SerializeToString()
    # On the wire a list of one text is an Example of these features: field 1, length, content.
    return feature_pb2.BytesList(value=[entries]).SerializeToString()


@settings(deadline=None)
@given(st.dictionaries(NAMES, LISTS, min_size=1, max_size=12))
@example({"b": ("int64", [0]), "a": ("int64", [1]), "": ("int64", [2]), "a/b": ("int64", [3])})
@example({"\uffff": ("int64", [0]), "\U0001f600": ("int64", [1]), "ä": ("int64", [2])})  # UTF-16 has another order
@example({"n" * 200: ("bytes", []), "m" * 20000: ("float", []), "k": ("int64", [])})
@example({"a": ("int64", [-1, -(2**63), 2**63 - 1, 0, 127, 128, 2**14 - 1, 2**14, 2**32, True])})
@example({"a": ("float", [LARGEST, -LARGEST, LEAST, LEAST / 2, LEAST * 0.6, -0.0, float("inf"), float("nan"), 7])})
@example({"a": ("float", [LARGEST * 1.0000001, 1e39, -1e300])})  # too large for float32
def test_the_bytes_are_those_of_protobuf(features):
    assert record.encode_example(features) == by_protobuf(features)


# Every length of a varint, on either side of its edges: of a value, of its list, of its entry and of the whole.
@settings(deadline=None)
@given(st.integers(100, 140) | st.integers(16360, 16400))
@example(2**21 - 1)
@example(2**21)
def test_values_of_any_length_are_framed_right(length):
    image = b"\xff" * length
    features = {"image/encoded": ("bytes", [image]), "z": ("bytes", [b"", b"x"])}
    assert record.encode_example(features) == by_protobuf(features)
    assert record.example_parts(features)[1] is image


@pytest.mark.parametrize("count", [31, 32, 4095, 4096])
def test_lists_of_any_length_are_framed_right(count):
    features = {"f": ("float", [0.1] * count), "i": ("int64", [-5] * count), "b": ("bytes", [b""] * min(count, 5000))}
    assert record.encode_example(features) == by_protobuf(features)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_whole_number_of_more_than_64_bits_is_refused(value):
    # Cut to its lowest 64 bits it would be another number, and nobody would notice.
    with pytest.raises(ValueError, match="is not in the range of int64$"):
        record.encode_example({"a": ("int64", [0, value])})


def test_an_unknown_kind_is_refused():
    with pytest.raises(KeyError, match="text"):
        record.encode_example({"a": ("text", ["x"])})


@pytest.mark.parametrize(
    ("message", "early"),
    [
        (b"", False),
        (b"\x00", True),  # field 0
        (b"\x0a\x00\x04 and what follows", True),  # the end of a group
        (b"\x0b\x0c", True),  # a group
        (b"\x10\x80\x00\x0a\x00", False),  # an unknown varint before
        (b"\x11\x00\x00\x00\x00\x00\x00\x00\x00\x0c", True),  # after eight bytes
        (b"\x15\x00\x00\x00\x00\x0c", True),  # after four bytes
        (b"\x15\x0c\x0c\x0c\x0c", False),  # within them
        (b"\x0a\x02\x0c\x0c", False),  # within a field: protobuf looks there itself
        (b"\x84\x80\x80\x80\x10", True),  # protobuf keeps 32 bits of a tag
    ],
)
def test_messages_that_protobuf_reads_in_part_are_known(message, early):
    assert record.ends_early(message) is early


@settings(deadline=None)
@given(st.binary(max_size=40))
@example(b"\x84\x80\x80\x80\x10")
def test_protobuf_warns_of_a_part_exactly_where_it_is_known_before(data):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            example_pb2.Example.FromString(data)
        except DecodeError:
            return
    if told:
        assert record.ends_early(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not record.ends_early(data):
            example_pb2.Example.FromString(data)
