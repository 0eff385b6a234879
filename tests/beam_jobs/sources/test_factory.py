from __future__ import annotations

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.options import TableColumns
from beam_jobs.sources.containers import guess_kind
from beam_jobs.sources.factory import open_source
from tests.beam_jobs.make_rows import make_options
from tests.make_images import class_folders


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t.csv", "csv"),
        ("t.tsv", "csv"),
        ("t.JSONL", "jsonl"),
        ("t.ndjson", "jsonl"),
        ("t.parquet", "parquet"),
        ("c.json", "coco"),
        ("a.tar.gz", "tar"),
        ("a.zip", "zip"),
        ("r.tfrecord-00000-of-00004", "tfrecord"),
    ],
)
def test_a_file_is_known_by_the_end_of_its_name(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"")
    assert guess_kind(str(tmp_path / name)) == kind
    assert guess_kind(f"s3://bucket/{name}") == kind  # nobody has to look there to know


def test_a_directory_with_the_files_of_tfds_is_a_tfds_source(tmp_path):
    assert guess_kind(str(tmp_path)) == "folder"
    (tmp_path / "features.json").write_bytes(b"{}")
    assert guess_kind(str(tmp_path)) == "tfds"


@pytest.mark.parametrize(("field", "pattern"), [("labels", ""), ("image", "*/*.jpg"), ("mask", "*/*.jpg")])
def test_columns_of_a_source_without_any_are_refused(tmp_path, field, pattern):
    class_folders(tmp_path, per_class=1)
    with pytest.raises(OptionError, match=f"^columns.{field} is 'x', but .* has no columns$"):
        open_source(make_options(source=str(tmp_path / pattern), columns=TableColumns(**{field: "x"})))
