from __future__ import annotations

import io
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.storage import parquet

MIB = 1 << 20
ROWS = 5000
HONEST = pa.table(
    {
        "key": [f"photos/{number:05d}.jpg" for number in range(ROWS)],
        "label": ["cat", None] * (ROWS // 2),
        "names": [["a", "b"][: number % 3] for number in range(ROWS)],
        "number": list(range(ROWS)),
        "share": [number / 7 for number in range(ROWS)],
        "inner": [{"x": number, "y": "text"} for number in range(ROWS)],
        "long": pa.array([bytes(16)] * ROWS, pa.binary(16)),
    }
)


def written(table: pa.Table, **options) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **{"compression": "zstd", **options})
    return out.getvalue()


def rows_of(data: bytes, columns: list[str] | None = None) -> list[dict]:
    return [row for batch in parquet.batches(io.BytesIO(data), columns) for row in batch.to_pylist()]


def table_of(data: bytes) -> pa.Table:
    return pa.Table.from_batches(list(parquet.table_batches(io.BytesIO(data))))


def refusal(data: bytes, columns: list[str] | None = None) -> str:
    with pytest.raises(pa.ArrowInvalid) as caught:
        rows_of(data, columns)
    return str(caught.value)


@pytest.mark.parametrize(
    ("codec", "version", "dictionary"),
    [
        *(("none", "1.0", True), ("snappy", "2.0", False), ("gzip", "1.0", ["label"])),
        *(("brotli", "2.0", True), ("lz4", "1.0", False), ("zstd", "2.0", ["label"])),
    ],
)
def test_what_honest_programs_write_is_read(codec, version, dictionary):
    options = {"compression": codec, "data_page_version": version, "use_dictionary": dictionary}
    data = written(HONEST, row_group_size=2000, data_page_size=1000, **options)
    assert rows_of(data) == HONEST.to_pylist()
    assert table_of(data).equals(HONEST)
    assert parquet.batch_rows(io.BytesIO(data)) == 4096
    assert rows_of(data, ["names", "key"]) == HONEST.select(["key", "names"]).to_pylist()


def test_an_empty_table_and_one_without_row_groups_are_read():
    assert rows_of(written(HONEST.slice(0, 0))) == []


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_of_a_text_that_every_row_repeats_is_bounded(codec):
    table = pa.table({"image": ["x" * 100_000] * 512})
    data = written(table, compression=codec)
    batches = list(parquet.batches(io.BytesIO(data)))
    assert [batch.num_rows for batch in batches] == [335, 177]  # 100,000 and 64 bytes a row, of 32 MiB
    assert max(batch.nbytes for batch in batches) < 32 * MIB


def test_a_batch_of_texts_that_share_what_they_begin_with_is_bounded():
    data = written(pa.table({"image": ["x" * 9996] * 100}), compression="none", use_dictionary=False)
    assert parquet.batch_rows(io.BytesIO(data)) == 32 * MIB // (10_000 + 1 + 64)
    # 100 values of encoding 7, which Arrow does not write.
    prefixed = data.replace(b"\x15\xc8\x01\x15\x00", b"\x15\xc8\x01\x15\x0e", 1)
    page_bytes = 100 * 10_000 + 6
    assert parquet.batch_rows(io.BytesIO(prefixed)) == 32 * MIB // (page_bytes + 64)


def test_values_of_a_fixed_length_are_bounded():
    table = pa.table({"image": pa.array([bytes(MIB)] * 100, pa.binary(MIB))})
    assert parquet.batch_rows(io.BytesIO(written(table))) == 31


def test_a_page_that_unpacks_to_more_than_its_limit_is_refused():
    data = written(pa.table({"image": ["x" * (64 * MIB)]}), use_dictionary=False)
    assert len(rows_of(data)) == 1
    data = written(pa.table({"image": ["x" * (65 * MIB)], "label": ["cat"]}), use_dictionary=False)
    allowed = 64 * MIB + 20 * len(data)
    message = f"column image has {65 * MIB + 10} bytes in a page; {allowed} are allowed in a file of its size"
    assert refusal(data) == message
    assert rows_of(data, ["label"]) == [{"label": "cat"}]  # other columns are not decoded


def test_the_largest_pages_of_all_columns_are_bounded_together():
    table = pa.table({f"c{number}": ["x" * (9 * MIB)] for number in range(8)})
    message = refusal(written(table))
    assert message.startswith("the largest pages of all columns have ")
    assert len(rows_of(written(table), [f"c{number}" for number in range(7)])) == 1


@pytest.mark.parametrize("value", ["x.jpg", None])
def test_rows_that_take_no_room_are_bounded(value):
    few, many = (written(pa.table({"image": [value] * count})) for count in (100_000, 300_000))
    assert len(rows_of(few)) == 100_000
    allowed = 100_000 + 100 * len(many)
    assert refusal(many) == f"column image has 300000 values; {allowed} are allowed in a file of its size"


def test_a_list_of_a_text_without_end_is_refused():
    table = pa.table({"names": [["x" * 100_000] * 4000]})
    # What the values of a list are called differs between versions of Arrow.
    assert re.match(r"column names\.list\.(item|element) has 400256000 bytes in lists; ", refusal(written(table)))
    assert len(rows_of(written(table.slice(0, 1).set_column(0, "names", [[["x" * 100_000] * 2000]])))) == 1


def test_a_whole_table_that_unpacks_to_more_than_its_limit_is_refused():
    def data(rows: int) -> bytes:
        return written(pa.table({"image": ["x" * 4 * MIB] * rows}))

    assert table_of(data(60)).nbytes > 240 * MIB
    with pytest.raises(pa.ArrowInvalid, match=rf"^its {len(data(80))} bytes unpack to more than the limit of \d+$"):
        table_of(data(80))


def repeated(rows: int) -> bytes:
    """Returns a file of one long text that every row repeats, which says that it is to be read as a dictionary."""
    return written(pa.table({"note": pa.DictionaryArray.from_arrays([0] * rows, ["x" * 400_000])}))


def test_a_text_of_a_dictionary_counts_in_every_row():
    with pytest.raises(pa.ArrowInvalid, match="unpack to more than the limit of 268"):
        table_of(repeated(5001))
    assert rows_of(repeated(3)) == [{"note": "x" * 400_000}] * 3


def dictionary(indices: list) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(["a", "b"]), safe=False)


def test_rows_of_a_dictionary_are_its_values():
    stream = io.BytesIO()
    pq.write_table(pa.table({"name": dictionary([1, None, 0])}), stream)
    assert [row["name"] for row in parquet.rows_of(stream)] == ["b", None, "a"]


@pytest.mark.parametrize("index", [2, -1])
def test_no_index_of_a_damaged_file_leads_out_of_its_dictionary(index):
    with pytest.raises(pa.ArrowInvalid, match="^the column has an index outside of its dictionary of 2 values$"):
        parquet._to_pylist(dictionary([1, index]))


def test_pages_of_a_group_that_claims_no_row_are_damage():
    data = repeated(5001)
    claimed = b"\x92\x4e"  # 5001 as Thrift writes it; the last one is that of the group
    place = data.rindex(claimed)
    with pytest.raises(pa.ArrowInvalid, match="its pages contain values, but it has no rows"):
        table_of(data[:place] + b"\x80\x00" + data[place + 2 :])


def test_one_long_value_among_many_short_ones_is_no_reason_to_refuse_a_table():
    table = pa.table({"extra": ["x" * MIB, *["y"] * 5000]})  # were each as long, it would be 5 GB
    assert table_of(written(table)).equals(table)


@pytest.mark.parametrize("seed", range(2))
def test_no_flipped_byte_is_more_than_an_error_of_arrow(seed):
    chance = random.Random(seed)
    good = written(HONEST.slice(0, 50), compression="none", data_page_size=200)
    for _ in range(100):
        data = bytearray(good)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            parquet.batch_rows(io.BytesIO(data))
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            continue


def header(*fields: bytes) -> dict:
    return parquet._structure(io.BytesIO(b"".join(fields) + b"\0"), 0)


def test_numbers_of_fields_wrap_as_they_do_for_thrift():
    # The number is written in full, zigzag: 65,537 is 1 in 16 bits.
    assert header(b"\x05" + b"\x82\x80\x08" + b"\x0e") == {1: 7}


def test_a_field_of_another_type_does_not_stand_for_a_number():
    assert header(b"\x15\x0e", b"\x06\x02\x02") == {1: None}  # 32 bits first, 64 bits of the same field later
    assert parquet._number({1: None}, 1) == -1


@pytest.mark.parametrize("fields", [b"\x15\xff\xff\xff\xff\x1f", b"\x15" + b"\xff" * 10, b"\x1c" * 9, b"\x19\x00"])
def test_what_thrift_would_cut_or_nest_is_refused(fields):
    with pytest.raises(pa.ArrowInvalid):
        header(fields)
