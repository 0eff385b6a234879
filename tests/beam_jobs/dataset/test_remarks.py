from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

from beam_jobs import ingest
from beam_jobs.dataset.remarks import _warn_of_large_near_set
from beam_jobs.options import IngestOptions, TableColumns
from tests.make_images import jpeg

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))


def warnings(tmp_path: Path, classes: tuple[str, ...], pattern: str = "") -> tuple[str, ...]:
    """Returns what an ingest of one image a class warns of."""
    for number, name in enumerate(classes):
        (tmp_path / "source" / name).mkdir(parents=True)
        (tmp_path / "source" / name / f"{number}.jpg").write_bytes(jpeg(number))
    return warnings_of(tmp_path, f"source{pattern}")


def warnings_of(tmp_path: Path, source: str, **fields) -> tuple[str, ...]:
    given = {"source": f"{tmp_path}/{source}", "out": f"{tmp_path}/out", "splits": {"all": 1}, **fields}
    return ingest.run(IngestOptions(**given)).remarks.warnings


@pytest.mark.parametrize(
    ("classes", "pattern", "warning"),
    [
        (("Test", "train", "val"), "", "all classes are named like splits (Test, train, val): "),
        (("span-1", "span-2"), "/*/*.jpg", "all classes are named like batches (span-1, span-2): "),
        (("batch_07",), "", "all classes are named like batches (batch_07): "),
    ],
)
def test_folders_of_splits_and_batches_are_no_classes_in_silence(tmp_path, classes, pattern, warning):
    (found,) = warnings(tmp_path, classes, pattern)
    assert found.startswith(warning)


@pytest.mark.parametrize("classes", [("train", "bus"), ("n01440764", "n01443537"), ("class1", "class2")])
def test_classes_with_names_of_their_own_are_not_warned_of(tmp_path, classes):
    assert warnings(tmp_path, classes) == ()


@pytest.mark.parametrize(("existing", "large"), [(0, True), (199, True), (200, False)])
def test_a_set_of_near_duplicates_is_large_beside_all_images_of_the_dataset(existing, large):
    plan = SimpleNamespace(near_largest=11, splits=[SimpleNamespace(images=20)])
    found = list(_warn_of_large_near_set(plan, existing))
    assert [line.partition(" images")[0] for line in found] == ["one set of near duplicates holds 11"] * large


def test_a_column_of_a_table_may_name_classes_like_splits(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "t.csv").write_text("image,label\n1.jpg,train\n")
    assert warnings_of(tmp_path, "t.csv") == ()


@pytest.mark.parametrize(
    ("classes", "shown"),
    [((COMPOSED, DECOMPOSED), "'Ka\\u0308fer' and 'K\\xe4fer'"), (("CAT", "Cat", "cat"), "'CAT', 'Cat' and 'cat'")],
)
def test_classes_that_look_alike_are_named(tmp_path, classes, shown):
    (found,) = warnings(tmp_path, classes)
    assert found.startswith(f"names that differ only in case or Unicode form: {shown}; each is a separate class")


def test_names_of_several_labels_are_compared_too(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg(1))
    (tmp_path / "t.csv").write_text("image,tags\n1.jpg,Sky|sky\n")
    (found,) = warnings_of(tmp_path, "t.csv", columns=TableColumns(labels="tags"))
    assert "'Sky' and 'sky'" in found
