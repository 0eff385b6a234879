from __future__ import annotations

from beam_jobs.dataset import schemas
from beam_jobs.rejects import Reject
from beam_jobs.types import Annotations, ImageObject
from tests.beam_jobs.make_rows import examined, make_facts, make_ref
from tests.command import python

REF = make_ref(
    "猫/a.jpg",
    label="猫",
    group="g",
    split="eval",
    extra={"b": 1.5, "a": [1, 2], "ä": "ö"},
    slice="stored:0:7:0:ä.tar",
    mtime_ns=2**60,
)
FACTS = make_facts(normalised="alpha", dhash=-(2**63), crc32c=2**32 - 1, mask_crc32c=2**32 - 1, source_height=120)


def test_extra_columns_are_stored_as_readable_json_in_one_order():
    assert schemas.ref_row(REF)["extra"] == '{"a": [1, 2], "b": 1.5, "ä": "ö"}'


OBJECT = ImageObject(label="猫", bbox=(0.1, 2.0, 3.5, 4.0), crowd=True, area=1e-9, segmentation=[[0.5, 1, 2, 3, 4, 5]])


def test_annotations_survive_their_cell():
    said = Annotations(objects=(OBJECT, ImageObject(label="b", bbox=(0.0, 0.0, 1.0, 1.0))), size=(60, 80))
    text = schemas.ref_row(make_ref(annotations=said))["annotations"]
    assert schemas.parse_annotations(text) == said
    # Cells are compared and hashed, so equal annotations must be equal text, whoever read them back.
    assert schemas.ref_row(make_ref(annotations=schemas.parse_annotations(text)))["annotations"] == text
    assert schemas.ref_row(make_ref())["annotations"] == ""


def test_facts_survive_their_row_and_the_file(tmp_path):
    path = str(tmp_path / "facts.parquet")
    schemas.write(path, examined((REF, FACTS)))
    (row,) = schemas.read(path).to_pylist()
    assert schemas.parse_facts(row) == FACTS
    names = ("key", "uri", "label", "group", "split")
    assert [row[name] for name in names] == ["猫/a.jpg", "猫/a.jpg", "猫", "g", "eval"]


def test_a_reject_fills_its_row():
    fields = {"key": "k", "uri": "u", "stage": "scan", "reason": "no_label", "detail": "d", "bytes": 3}
    assert list(schemas.reject_row(Reject(**fields)).items()) == list(fields.items())
    assert list(fields) == schemas.REJECTS.names


def test_the_published_schema_is_the_one_readers_know():
    assert schemas.IMAGES.names == [
        *("key", "uri", "label", "group", "split", "extra", "annotations"),
        *("format", "source_format", "height", "width", "source_height", "source_width", "channels", "bytes"),
        *("sha256", "source_sha256", "crc32c", "dhash", "mean_rgb", "var_rgb", "normalised", "mask_crc32c"),
        *("cluster", "near", "label_index", "shard", "offset"),
    ]


def test_a_process_that_has_read_a_table_ends_well(tmp_path):
    """With `pyarrow.parquet.read_table` of Arrow 10 every other one is aborted on its way out."""
    path = str(tmp_path / "table.parquet")
    schemas.write(path, examined((REF, FACTS)))
    code = "import sys; from beam_jobs.dataset import schemas; schemas.read(sys.argv[1])"
    for _ in range(4):
        done = python(code, path)
        assert (done.returncode, done.stderr) == (0, "")
