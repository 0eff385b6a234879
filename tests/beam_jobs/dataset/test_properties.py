"""What holds for any names, payloads, records and manifests, not only for those that somebody thought of."""

from __future__ import annotations

import io
import json
import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Shard, SplitInfo
from beam_jobs.errors import CorruptDataset
from beam_jobs.sources.row_reader import NUMBER
from beam_jobs.types import Annotations, ImageObject, ImageRef, RecordObject
from tests.beam_jobs.make_rows import make_record, parse_ref
from tests.rewrite_records import framed

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # half a surrogate pair is no UTF-8
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
SPLITS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
FILES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True)
EXTRA = st.one_of(*(INT64, FLOAT32, NAMES), *(st.lists(values, max_size=4) for values in (INT64, FLOAT32, NAMES)))
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)

any_time = settings(deadline=None)


# Framing.


@any_time
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_payloads_are_read_back_each_from_its_offset(payloads):
    data = framed(*payloads)
    found = list(tfrecord.read_records(io.BytesIO(data), "x"))
    assert [payload for _, payload in found] == payloads
    assert all(tfrecord.read_record_at(io.BytesIO(data), "x", offset) == payload for offset, payload in found)


@any_time
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_any_flipped_bit_is_found_and_only_the_records_before_it_are_read(payloads, data):
    whole = framed(*payloads)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    read = []
    with pytest.raises(CorruptDataset) as caught:
        read.extend(payload for _, payload in tfrecord.read_records(io.BytesIO(changed), "x"))
    start = sum(len(payload) + tfrecord.OVERHEAD for payload in read)
    assert read == payloads[: len(read)]
    assert start <= bit // 8 < start + len(payloads[len(read)]) + tfrecord.OVERHEAD
    assert f"offset {start}" in str(caught.value)


@any_time
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data):
    try:
        found = list(tfrecord.read_records(io.BytesIO(data), "x"))
    except CorruptDataset:
        return
    assert framed(*(payload for _, payload in found)) == data


# Records.

OBJECTS = st.builds(
    RecordObject,
    label=INT64,
    text=NAMES,
    bbox=st.tuples(FLOAT32, FLOAT32, FLOAT32, FLOAT32),
    crowd=st.booleans(),
    area=FLOAT32,
    mask=st.binary(max_size=20),
)


@any_time
@given(
    st.binary(max_size=50),
    NAMES,
    st.none() | st.lists(st.tuples(INT64, NAMES), max_size=4).map(tuple),
    st.none() | st.lists(OBJECTS, max_size=3).map(tuple),
    st.none() | FLOAT32,
    st.binary(max_size=20),
    st.dictionaries(NAMES, EXTRA, max_size=4),
)
def test_all_that_is_said_of_an_image_is_read_back(encoded, key, labels, objects, weight, mask, extra):
    given_ = make_record(encoded, key=key, labels=labels, objects=objects, weight=weight, mask=mask, extra=extra)
    serialized = record.encode(given_)
    values = record.decode(serialized)
    assert record.encode(given_) == serialized
    assert record.type_problem(values) == ""
    assert (values[record.ENCODED], values[record.FILENAME]) == ([encoded], [key.encode()])
    assert values.get(record.LABEL) == (None if labels is None else [index for index, _ in labels])
    assert values.get(record.WEIGHT) == (None if weight is None else [weight])
    assert values.get(record.MASK, [b""]) == [mask]
    texts = None if objects is None else [one.text.encode() for one in objects]
    assert values.get(record.OBJECT_PREFIX + "class/text") == texts
    assert {name: _stored(value) for name, value in extra.items()} == {
        name.removeprefix(record.EXTRA_PREFIX): value
        for name, value in values.items()
        if name.startswith(record.EXTRA_PREFIX)
    }


def _stored(value) -> list:
    values = value if isinstance(value, list) else [value]
    return [item.encode() if isinstance(item, str) else item for item in values]


@any_time
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_are_refused(data):
    from google.protobuf.message import DecodeError

    try:
        values = record.decode(data)
    except DecodeError:
        return
    assert isinstance(record.type_problem(values), str)


# Rows of tables.


@any_time
@given(
    *(NAMES, NAMES, NAMES),
    st.dictionaries(NAMES, EXTRA, max_size=3),
    st.none()
    | st.builds(
        Annotations,
        labels=st.none() | st.lists(NAMES, max_size=3).map(tuple),
        objects=st.none()
        | st.lists(
            st.builds(ImageObject, label=NAMES, bbox=st.tuples(FLOAT32, FLOAT32, FLOAT32, FLOAT32)), max_size=2
        ).map(tuple),
        size=st.none() | st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
        mask=st.none() | NAMES,
        weight=st.none() | FLOAT32,
    ),
)
def test_a_reference_is_read_back_from_its_row(key, uri, label, extra, annotations):
    ref = ImageRef(key=key, uri=uri, label=label, extra=extra, annotations=annotations)
    table = schemas.pa.Table.from_pylist([schemas.ref_row(ref)], schemas.REFS)
    assert parse_ref(table.to_pylist()[0]) == ref


@any_time
@given(st.text("-+.eE0123456789", max_size=12))
@example(".")
@example("-.")
@example("e5")
@example(".e5")
def test_a_cell_that_counts_as_a_number_can_be_made_one(cell):
    if NUMBER.fullmatch(cell):
        float(cell)


@any_time
@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_as_python_writes_it_counts_as_one(number):
    assert NUMBER.fullmatch(str(number))


# The manifest.

SHARDS = st.builds(Shard, name=FILES, records=st.integers(0, 2**40), bytes=st.integers(0, 2**60), sha256=HEX)
COUNTS = st.dictionaries(NAMES, st.integers(0, 2**40), max_size=4)
MANIFESTS = st.builds(
    Manifest,
    source=NAMES,
    options=st.dictionaries(NAMES, st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | NAMES, max_size=5),
    options_digest=HEX,
    label_kind=st.sampled_from(["single", "multi", "none"]),
    labels=st.lists(NAMES, unique=True, max_size=5).map(tuple),
    splits=st.dictionaries(
        SPLITS, st.builds(SplitInfo, shards=st.lists(SHARDS, max_size=3).map(tuple), classes=COUNTS), max_size=3
    ),
    counts=st.builds(ImageCounts, found=st.integers(0, 99), written=st.integers(0, 99), rejects=COUNTS),
    channels=st.none()
    | st.builds(
        ChannelStatistics,
        split=NAMES,
        mean_rgb=st.tuples(FLOAT32, FLOAT32, FLOAT32),
        std_rgb=st.tuples(FLOAT32, FLOAT32, FLOAT32),
    ),
    producer=st.dictionaries(NAMES, NAMES, max_size=3),
    tables=st.dictionaries(FILES, HEX, max_size=3),
)


@any_time
@given(MANIFESTS)
def test_a_manifest_is_read_back_and_written_the_same_again(given_):
    with tempfile.TemporaryDirectory() as folder:
        manifest.write(given_, folder)
        found = manifest.load(folder)
        with open(f"{folder}/dataset.json", "rb") as stream:
            data = stream.read()
    assert found == given_
    assert found.digest == given_.digest
    assert manifest.serialise(json.loads(data)) == manifest.serialise(found.to_json()) == data
