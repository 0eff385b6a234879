from __future__ import annotations

import pytest

from beam_jobs import record, tfrecord, wire
from beam_jobs.errors import SourceError
from beam_jobs.inspect import FileSummary, summarise_file
from beam_jobs.inspect.files import find, name_below
from beam_jobs.inspect.guess import guess
from beam_jobs.inspect.summary import FileFacts
from tests.make_images import jpeg, png


def summary_of(*records: dict[str, list], paths: tuple[str, ...] = ()) -> FileSummary:
    summary = FileSummary(files=[FileFacts(path=path, records=len(records)) for path in paths])
    for values in records:
        summary.add(values, 0, 1)
    return summary


def many(**features: list) -> FileSummary:
    """Twenty records whose features hold a value each, taken from lists in turn."""
    return summary_of(*({name: [values[n % len(values)]] for name, values in features.items()} for n in range(20)))


# --- the image


@pytest.mark.parametrize(
    ("records", "image", "role"),
    [
        ([{"picture": [jpeg()]}], "picture", "image, jpeg"),
        ([{"picture": [jpeg()]}, {"picture": [png()]}, {"picture": [jpeg(1)]}], "picture", "image, jpeg 2 png 1"),
        ([{"thumb": [png(0, 8, 8)], "full": [png()]}], "full", "image, png"),
        ([{"seg_mask": [png(0, 90, 90)], "x": [png(0, 8, 8)]}], "x", "image, png"),
        ([{record.ENCODED: [jpeg(0, 8, 8)], "a": [jpeg()]}], record.ENCODED, "image, jpeg"),
        ([{"frames": [jpeg(), jpeg(1)]}], "frames", "image, jpeg"),
        ([{"raw": [bytes(60)], "height": [4], "width": [5]}], "raw", "image, bare pixels"),
        ([{"raw": [bytes(20)], "rows": [4], "cols": [5], "depth": [1]}], "raw", "image, bare pixels"),
    ],
)
def test_the_image_is_known_by_what_it_begins_with(records, image, role):
    guessed = guess(summary_of(*records))
    assert guessed.image == image
    assert guessed.roles[image] == role


@pytest.mark.parametrize(
    "values",
    [
        {"car": [b"BMW"]},  # the magic bytes of a BMP
        {"raw": [bytes(61)], "height": [4], "width": [5]},
        {"raw": [bytes(60)], "height": [-4], "width": [-15]},
        {"raw": [bytes(60)], "height": [b"4"], "width": [5]},
        {"numbers": [1, 2, 3]},
        {},
    ],
)
def test_what_is_no_image_is_not_taken_for_one(values):
    assert guess(summary_of(values)).image == ""


def test_other_images_and_masks_are_said_to_be_that():
    roles = guess(summary_of({"a": [jpeg()], "b": [jpeg(0, 9, 9)], "c_mask": [png()]})).roles
    assert roles == {"a": "image, jpeg", "b": "another image, jpeg", "c_mask": "mask, png"}


# --- what is said of it


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ({"label": [0, 1, 2]}, ("label",)),
        (
            {"image/class/label": [3, 4], "image/class/text": [b"cat", b"dog"]},
            ("image/class/label", "image/class/text"),
        ),
        ({"image/object/class/label": [1], "label": [0]}, ("label", "image/object/class/label")),
        ({"fine_label": [0, 1], "coarse_label": [0]}, ("coarse_label", "fine_label")),
        ({"digit": [0, 1, 2]}, ("digit",)),
        ({"classic": [0.5]}, ()),
        ({"id": [0, 1, 2]}, ()),
        ({"number": list(range(20))}, ()),
        ({"height": [0, 1]}, ()),
    ],
)
def test_labels_are_known_by_their_name_or_by_few_small_numbers(features, labels):
    assert guess(many(**features)).labels == labels


def test_a_format_is_no_label_and_labels_may_be_missing_here_and_there():
    values = [{"class/format": [b"png"], "class/text": [b"cat"]}] * 10 + [{"class/format": [], "class/text": []}] * 5
    guessed = guess(summary_of(*values))
    assert guessed.labels == ("class/text",)
    assert guessed.roles["class/text"].startswith("class name, 1 value")
    assert guess(summary_of({"class/text": []})).labels == ()


def test_each_kind_of_value_is_described():
    caption = [f"a picture of {n} things".encode() for n in range(20)]
    names = [f"{n}.jpg".encode() for n in range(20)]
    guessed = guess(
        many(
            label=[0, 1, 2],
            caption=caption,
            filename=names,
            score=[0.5, 1.5],
            kind=[b"x", b"y"],
            noise=[b"\xff\xfe\x00"],
        )
    )
    assert guessed.roles == {
        "label": "label, 0 to 2, 3 values",
        "caption": "text",
        "filename": "key",
        "score": "0.5 to 1.5",
        "kind": "text, 2 values",
    }
    assert guessed.text == ("caption", "kind")


def test_numbers_that_are_none_spoil_nothing():
    assert guess(many(x=[float("nan"), 2.0, float("inf"), 1.0])).roles["x"] == "1 to 2"
    assert guess(many(x=[float("nan")])).roles == {}


def test_many_numbers_may_be_pixels():
    assert guess(summary_of({"x": [0, 255] * 392})).roles["x"] == "0 to 255, perhaps pixels"


@pytest.mark.parametrize(
    ("values", "boxes", "role"),
    [
        (
            {f"o/bbox/{edge}": [0.5] for edge in ("xmin", "xmax", "ymin", "ymax")},
            ("o/bbox",),
            "boxes, shares of the sides",
        ),
        ({f"{edge}": [50.0, 3.0] for edge in ("x_min", "x_max", "y_min", "y_max")}, ("x_min",), "boxes, pixels"),
        ({"objects/bbox": [0.1, 0.2, 0.3, 0.4] * 2}, ("objects/bbox",), "boxes, shares of the sides"),
        ({"objects/bbox": [1, 2, 30, 40]}, ("objects/bbox",), "boxes, pixels"),
        ({"objects/bbox": [1, 2, 30]}, (), "1 to 30"),
        ({"xmin": [0.5], "xmax": [0.6]}, (), "0.5"),
    ],
)
def test_boxes_are_four_edges_or_lists_of_four(values, boxes, role):
    guessed = guess(summary_of(values))
    assert guessed.boxes[:1] == boxes
    assert guessed.roles[next(iter(values))] == role


# --- who wrote them


def test_a_dataset_of_ours_is_known_by_its_features(dataset):
    shard = str(dataset / "Split-train" / "data-00000-of-00002.tfrecord")
    guessed = guess(summarise_file(shard))
    assert guessed.looks_like == "Feedline: the records have its features"
    assert (guessed.image, guessed.labels[0]) == (record.ENCODED, record.LABEL)


@pytest.mark.parametrize(
    ("path", "values", "looks_like"),
    [
        ("mnist-train.tfrecord-00000-of-00001", {"image": [png()]}, "TFDS, by the names of the files"),
        ("x/Split-train/data_tfrecord-00000-of-00001.gz", {"a": [1]}, "TFX: Examples, by the names of the directories"),
        ("a.tfrecord", {"image/encoded": [png()]}, "tfrecord by hand, with the customary keys of images"),
        ("a.tfrecord", {"a": [1]}, "tfrecord by hand"),
    ],
)
def test_others_are_known_by_names_of_files_and_features(path, values, looks_like):
    assert guess(summary_of(values, paths=(path,))).looks_like == looks_like


def test_what_tfds_prepared_is_known_by_the_file_beside(tmp_path):
    (tmp_path / "features.json").write_text("{}")
    path = str(tmp_path / "renamed.tfrecord")
    assert guess(summary_of({"a": [1]}, paths=(path,))).looks_like == "TFDS: features.json lies beside the files"


def test_records_without_features_look_like_nothing(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"")
    assert guess(summarise_file(str(path))).looks_like == "nothing: there is no record"
    path.write_bytes(b"".join(tfrecord.frame(b"\xff\xff no example")))
    assert guess(summarise_file(str(path))).looks_like == "nothing known: no record is a tf.train.Example"


# --- which files


def put(root, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(tfrecord.frame(wire.example({"a": ("int64", (1,))}))))


def test_below_a_directory_the_files_of_that_name_count(tmp_path):
    put(tmp_path, "b/2.tfrecord", "a.tfrecord-00000-of-00001", ".hidden.tfrecord")
    (tmp_path / "features.json").write_text("{}")
    found = find(str(tmp_path))
    assert [name_below(path, str(tmp_path)) for path in found] == ["a.tfrecord-00000-of-00001", "b/2.tfrecord"]


def test_below_a_directory_without_such_names_all_count(tmp_path):
    put(tmp_path, "b", "a")
    assert [name_below(path, str(tmp_path)) for path in find(f"{tmp_path}/")] == ["a", "b"]


def test_a_pattern_and_a_file_stand_for_themselves(tmp_path):
    put(tmp_path, "1.rec", "2.rec", "3.other")
    assert find(str(tmp_path / "*.rec")) == [str(tmp_path / "1.rec"), str(tmp_path / "2.rec")]
    assert find(str(tmp_path / "3.other")) == [str(tmp_path / "3.other")]
    assert name_below(str(tmp_path / "3.other"), str(tmp_path / "3.other")) == "3.other"


def test_a_directory_of_something_else_is_said_to_be_that(tmp_path):
    (tmp_path / "1.jpg").write_bytes(jpeg())
    with pytest.raises(SourceError, match="holds neither dataset.json nor a TFRecord file"):
        find(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty holds no file"):
        find(str(tmp_path / "empty"))
