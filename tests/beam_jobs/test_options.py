from __future__ import annotations

import json
import os
from dataclasses import fields, replace

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.options import HttpOptions, ImageLimits, IngestOptions, PixelOptions, TableColumns, parse_splits
from beam_jobs.types import LABEL_KINDS

BASE = IngestOptions(source="photos", out="dataset")
SHAPES_THE_BYTES = {
    "source_kind": "csv",
    "columns": TableColumns(label="class"),
    "splits": {"train": 0.8, "eval": 0.2},
    "seed": 1,
    "shard_mb": 64.0,
    "shards": 3,
    "duplicates": "drop",
    "near_duplicates": "group",
    "near_distance": 5,
    "stratify": True,
    "pixels": PixelOptions(policy="resize"),
    "facts": "basic",
    "limits": ImageLimits(min_side_px=9),
}
SHAPES_ONLY_THE_WORK = {
    "source": "elsewhere",
    "out": "elsewhere",
    "threads": 3,
    "overwrite": True,
    "append": True,
    "retry_rejects": True,
    "bucket_images": 7,
    "max_reject_ratio": 0.5,
    "unreadable": "reject",
    "float32_loss": "refuse",
    "split_conflicts": "refuse",
    "allow_buckets": ("s3://elsewhere",),
    "http": HttpOptions(timeout_s=99.0),  # a patient run takes up what a hasty one has examined
}


def test_every_option_is_in_one_of_the_two_tables_of_this_file():
    assert {field.name for field in fields(IngestOptions)} == set(SHAPES_THE_BYTES) | set(SHAPES_ONLY_THE_WORK)


@pytest.mark.parametrize(("name", "value"), SHAPES_THE_BYTES.items())
def test_the_digest_follows_what_shapes_the_bytes(name, value):
    assert replace(BASE, **{name: value}).digest() != BASE.digest()


@pytest.mark.parametrize(("name", "value"), SHAPES_ONLY_THE_WORK.items())
def test_the_digest_ignores_what_shapes_only_the_work(name, value):
    changed = replace(BASE, **{name: value})
    assert changed.digest() == BASE.digest()
    assert changed.to_json()[name] == json.loads(json.dumps(value, default=vars))


@pytest.mark.parametrize("field", [field.name for field in fields(ImageLimits)])
def test_the_digest_follows_every_image_limit(field):
    limits = replace(BASE.limits, **{field: getattr(BASE.limits, field) + 1})
    assert replace(BASE, limits=limits).digest() != BASE.digest()


@pytest.mark.parametrize(("field", "value"), [("policy", "raw"), ("side_px", 64), ("fit", "inside"), ("quality", 70)])
def test_the_digest_follows_every_option_of_the_pixels(field, value):
    assert replace(BASE, pixels=PixelOptions(**{field: value})).digest() != BASE.digest()
    assert {"policy", "side_px", "fit", "quality"} == {field.name for field in fields(PixelOptions)}


@pytest.mark.parametrize("field", [field.name for field in fields(TableColumns)])
def test_the_digest_follows_every_column(field):
    columns = TableColumns(**{field: {"extra": ("other",), "max_value_bytes": 7}.get(field, "other")})
    assert replace(BASE, columns=columns).digest() != BASE.digest()


def test_the_digest_follows_the_order_of_the_splits():
    forward = replace(BASE, splits={"train": 0.5, "eval": 0.5})
    assert forward.digest() != replace(BASE, splits={"eval": 0.5, "train": 0.5}).digest()


def test_the_digest_is_64_hex_digits_and_repeatable():
    assert BASE.digest() == IngestOptions(source="photos", out="dataset").digest()
    assert len(bytes.fromhex(BASE.digest())) == 32


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "source_kind",
            "rar",
            "^source_kind is 'rar'; it must be one of auto, folder, glob, csv, jsonl, parquet, coco, ",
        ),
        ("duplicates", "maybe", "^duplicates is 'maybe'; it must be one of keep, drop, report$"),
        ("near_duplicates", "keep", "^near_duplicates is 'keep'; it must be one of off, report, group, drop$"),
        ("split_conflicts", "drop", "^split_conflicts is 'drop'; it must be one of report, refuse$"),
        ("near_distance", -1, "^near_distance is -1; it must be a whole number of at least 0$"),
        ("near_distance", 9, "^near_distance is 9; give 0 to 8: over 8 of 64 bits unlike images meet$"),
        ("facts", "none", "^facts is 'none'; it must be one of all, basic$"),
        ("unreadable", "skip", "^unreadable is 'skip'; it must be one of stop, reject$"),
        ("float32_loss", "keep", "^float32_loss is 'keep'; it must be one of report, refuse$"),
        ("shard_mb", 0, "^shard_mb is 0; it must be a number of at least 0.001$"),
        ("shard_mb", float("nan"), "^shard_mb is nan;"),
        ("shard_mb", float("inf"), "^shard_mb is inf;"),
        ("shards", -1, "^shards is -1; it must be a whole number of at least 0$"),
        ("shards", True, "^shards is True;"),
        ("threads", -2, "^threads is -2;"),
        ("threads", "4", "^threads is '4';"),
        ("bucket_images", 0, "^bucket_images is 0; it must be a whole number of at least 1$"),
        ("max_reject_ratio", 1.01, "^max_reject_ratio is 1.01; it must be between 0 and 1$"),
        ("max_reject_ratio", -0.01, "^max_reject_ratio is -0.01;"),
        ("max_reject_ratio", float("nan"), "^max_reject_ratio is nan;"),
        ("splits", {}, "^splits is empty; name at least one, as in train=1$"),
        ("splits", {"tr/ain": 1.0}, "^split name 'tr/ain' is not allowed"),
        ("splits", {"..": 1.0}, "^split name '..' is not allowed"),
        ("splits", {"": 1.0}, "^split name '' is not allowed"),
        ("splits", {"prüf": 1.0}, "^split name 'prüf' is not allowed"),
        ("splits", {"train": 0}, "^split train has the share 0; it must be a number above 0$"),
        ("splits", {"train": float("nan")}, "^split train has the share nan;"),
        ("splits", {"train": float("inf")}, "^split train has the share inf;"),
        ("splits", {"train": "1"}, "^split train has the share '1';"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value, message):
    with pytest.raises(OptionError, match=message):
        IngestOptions(**{"source": "photos", "out": "dataset", name: value})


@pytest.mark.parametrize(
    "modes", [("overwrite", "append"), ("append", "retry_rejects"), ("overwrite", "append", "retry_rejects")]
)
def test_what_becomes_of_an_old_dataset_is_said_once(modes):
    message = f"^{' and '.join(modes)} exclude one another; give one of them$"
    with pytest.raises(OptionError, match=message):
        replace(BASE, **dict.fromkeys(modes, True))


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (PixelOptions, "policy", "crop", "^policy is 'crop'; it must be one of copy, resize, raw$"),
        (PixelOptions, "fit", "long", "^fit is 'long'; it must be one of short, inside$"),
        (PixelOptions, "side_px", 0, "^side_px is 0; it must be a whole number of at least 1$"),
        (PixelOptions, "side_px", 2.5, "^side_px is 2.5;"),
        (PixelOptions, "quality", 0, "^quality is 0; it must be a whole number of at least 1$"),
        (PixelOptions, "quality", 101, "^quality is 101; it must be from 1 to 100$"),
        (HttpOptions, "timeout_s", 0, "^timeout_s is 0;"),
        (HttpOptions, "timeout_s", float("nan"), "^timeout_s is nan;"),
        (HttpOptions, "retries", -1, "^retries is -1; it must be a whole number of at least 0$"),
        (HttpOptions, "per_host", 0, "^per_host is 0; it must be a whole number of at least 1$"),
    ],
)
def test_a_nested_value_out_of_range_is_refused_by_name(kind, name, value, message):
    with pytest.raises(OptionError, match=message):
        kind(**{name: value})


def test_more_pixels_than_the_decoder_takes_cannot_be_allowed():
    with pytest.raises(OptionError, match="^max_pixels is 200000000; Pillow refuses images above 178956970$"):
        ImageLimits(max_pixels=200_000_000)


@pytest.mark.parametrize("name", ["shards", "threads", "bucket_images", "near_distance"])
def test_a_count_must_be_a_whole_number(name):
    with pytest.raises(OptionError, match=f"^{name} is 2.5;"):
        replace(BASE, **{name: 2.5})


@pytest.mark.parametrize("value", ["0", 1.5, True])
def test_a_seed_must_be_a_whole_number(value):
    with pytest.raises(OptionError, match="^seed is "):
        replace(BASE, seed=value)


def test_a_reject_ratio_must_be_a_number():
    with pytest.raises(OptionError, match="^max_reject_ratio is '0.1';"):
        replace(BASE, max_reject_ratio="0.1")


@pytest.mark.parametrize("field", [field.name for field in fields(ImageLimits) if "mask" not in field.name])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "8", True, None])
def test_an_image_limit_must_be_a_number_of_at_least_one(field, value):
    with pytest.raises(OptionError, match=f"^{field} is {value!r}; it must be a (whole )?number of at least 1$"):
        ImageLimits(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mask_classes", -1, "must be a whole number of at least 0"),
        ("mask_classes", 257, "must be from 0 to 256"),
        ("mask_ignore", -2, "must be a whole number of at least -1"),
        ("mask_ignore", 256, "must be from -1 to 255"),
        ("mask_ignore", None, "must be a whole number of at least -1"),
    ],
)
def test_classes_of_masks_are_values_of_a_byte(field, value, message):
    with pytest.raises(OptionError, match=f"^{field} is {value}; it {message}$"):
        ImageLimits(**{field: value})


# 5e7 in a YAML file is a float; `stream.read` would fail on it image by image, in the middle of the ingest.
@pytest.mark.parametrize("value", [5.5e7, float("inf")])
def test_a_limit_of_bytes_must_be_a_whole_number(value):
    with pytest.raises(OptionError, match="^max_bytes is "):
        ImageLimits(max_bytes=value)


@pytest.mark.parametrize("value", [0, (16 << 20) + 1, 1.5])
def test_a_cell_has_1_byte_to_16_mebibytes(value):
    with pytest.raises(OptionError, match="^max_value_bytes is "):
        TableColumns(max_value_bytes=value)
    assert TableColumns(max_value_bytes=16 << 20).max_value_bytes == 16 << 20


@pytest.mark.parametrize("name", ["image", "label_separator"])
def test_a_table_needs_an_image_column_and_a_separator(name):
    with pytest.raises(OptionError, match=f"^the {name} column is ''; name a column of the table$"):
        TableColumns(**{name: ""})


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({}, "single"),
        ({"label": "class"}, "single"),
        ({"label": ""}, "none"),
        ({"labels": "classes"}, "multi"),
        ({"label": "", "labels": "classes"}, "multi"),
    ],
)
def test_the_columns_say_what_is_known_of_the_class(columns, kind):
    assert TableColumns(**columns).label_kind == kind
    assert TableColumns(**columns).label_kind in LABEL_KINDS


def test_named_columns_are_those_asked_for():
    assert TableColumns().named() == {"image": "image", "label": "label"}
    assert TableColumns(image="path", key="id", group="patient", split="fold", extra=("age", "sex")).named() == {
        "image": "path",
        "label": "label",
        "key": "id",
        "group": "patient",
        "split": "fold",
        "extra age": "age",
        "extra sex": "sex",
    }
    assert TableColumns(label="").named() == {"image": "image"}
    assert TableColumns(labels="classes", mask="mask", weight="weight").named() == {
        "image": "image",
        "labels": "classes",
        "mask": "mask",
        "weight": "weight",
    }


@pytest.mark.parametrize("name", [*SHAPES_THE_BYTES, *SHAPES_ONLY_THE_WORK])
def test_json_takes_every_option_there_and_back(name):
    changed = replace(BASE, **{name: {**SHAPES_THE_BYTES, **SHAPES_ONLY_THE_WORK}[name]})
    again = IngestOptions.from_json(json.loads(json.dumps(changed.to_json())))
    assert again == changed
    assert again.digest() == changed.digest()
    assert list(again.splits) == list(changed.splits)


def test_json_keeps_extra_columns_hashable():
    options = replace(BASE, columns=TableColumns(extra=("age", "sex")))
    assert IngestOptions.from_json(json.loads(json.dumps(options.to_json()))).columns.extra == ("age", "sex")


def test_from_json_checks_like_the_constructor():
    with pytest.raises(OptionError, match="^threads is -1;"):
        IngestOptions.from_json({**BASE.to_json(), "threads": -1})


def test_shares_sum_to_one_in_order():
    shares = replace(BASE, splits={"train": 6, "eval": 1, "test": 1}).shares
    assert list(shares.items()) == [("train", 0.75), ("eval", 0.125), ("test", 0.125)]


def test_threads_default_to_the_cores():
    assert BASE.thread_count == os.cpu_count()
    assert replace(BASE, threads=3).thread_count == 3


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("train=0.9,eval=0.1", {"train": 0.9, "eval": 0.1}),
        ("eval:1, train:9", {"eval": 1.0, "train": 9.0}),
        ("all=1", {"all": 1.0}),
    ],
)
def test_splits_are_read_from_text(text, shares):
    assert list(parse_splits(text).items()) == list(shares.items())


@pytest.mark.parametrize("text", ["", "train", "train=", "train=x", "train=0.9,", "0.9", "train=0.9;eval=0.1"])
def test_text_that_is_not_splits_is_refused(text):
    with pytest.raises(OptionError, match=r"write it as train=0.9,eval=0.1$") as caught:
        parse_splits(text)
    assert repr(text) in str(caught.value)


def test_a_split_named_twice_is_refused():
    with pytest.raises(OptionError, match="train"):
        parse_splits("train=0.5,train=0.5")


def test_raw_images_have_a_largest_side():
    assert PixelOptions(policy="raw", side_px=4096).side_px == 4096
    with pytest.raises(OptionError, match="^side_px is 4097; raw images have at most 4096"):
        PixelOptions(policy="raw", side_px=4097)
    assert PixelOptions(policy="resize", side_px=9000).side_px == 9000
