from __future__ import annotations

import dataclasses

import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from beam_jobs.stages.publish import dataset_options
from components.schema.component import FloatRange, IntRange, TextSet, add_manifest_domains, manifest_domains
from tests.components.conftest import manifest_of

TWO = manifest_of({"train": {"cat": 3, "dog": 2}})


def dataset_of(label_kind: str = "single", **options):
    """A manifest of the classes `cat` and `dog` that an ingest with these options would write."""
    made = dataset_options(IngestOptions(source="photos", out="", **options))
    return dataclasses.replace(TWO, options=made, label_kind=label_kind)


def schema_of(text: str) -> schema_pb2.Schema:
    return text_format.Parse(text, schema_pb2.Schema())


@pytest.mark.parametrize(
    ("pixels", "least", "most"),
    [
        (PixelOptions(), 10, 2000),
        (PixelOptions(policy="resize", side_px=4), 4, 2000),  # the short side is made shorter than any source may be
        (PixelOptions(policy="resize", side_px=256, fit="inside"), 1, 256),
        (PixelOptions(policy="resize", side_px=4000, fit="inside"), 1, 2000),
        (PixelOptions(policy="raw", side_px=64), 64, 64),
    ],
)
def test_sizes_follow_from_the_limits_and_the_policy(pixels, least, most):
    limits = ImageLimits(min_side_px=10, max_side_px=2000)
    domains = manifest_domains(dataset_of(pixels=pixels, limits=limits), {})
    assert domains["image/height"] == domains["image/width"] == IntRange(least=least, most=most)


def test_what_the_dataset_knows_needs_no_statistics():
    domains = manifest_domains(dataset_of(limits=ImageLimits(max_bytes=5000, max_aspect=4)), {})
    assert domains["image/bytes"] == IntRange(least=1, most=5000)
    assert domains["image/aspect_ratio"] == FloatRange(least=0.25, most=4)
    assert domains["image/channels"] == IntRange(least=1, most=3)
    assert domains["image/mean_rgb"] == domains["image/brightness"] == FloatRange(least=0, most=255)
    assert domains["image/var_rgb"] == FloatRange(least=0)
    assert domains["image/format"] == TextSet(values=("jpeg", "png"))
    assert domains["image/class/text"] == domains["image/object/class/text"] == TextSet(values=("cat", "dog"))
    assert domains["image/class/label"] == IntRange(least=0, most=1, category=True)
    assert domains["image/object/bbox/xmin"] == FloatRange(least=0, most=1)
    raw = manifest_domains(dataset_of(pixels=PixelOptions(policy="raw")), {})
    assert raw["image/format"] == TextSet(values=("raw",))


@pytest.mark.parametrize(
    ("name", "seen", "domain"),
    [
        ("image/width", (2.0, 50000.0), IntRange(least=2, most=50000)),
        ("image/width", (100.0, 200.0), IntRange(least=8, most=32768)),
        ("image/bytes", (9.0, 1e8), IntRange(least=1, most=100_000_000)),
        ("image/aspect_ratio", (0.01, 30.0), FloatRange(least=0.01, most=30)),
        ("image/brightness", (-3.0, 300.0), FloatRange(least=0, most=255)),  # no image can be so: the range stays
        ("image/class/label", (0.0, 7.0), IntRange(least=0, most=1, category=True)),
    ],
)
def test_only_sizes_are_widened_to_what_is_there(name, seen, domain):
    assert manifest_domains(dataset_of(), {name: seen})[name] == domain


def test_a_description_replaces_what_was_guessed_and_leaves_user_columns_alone():
    user = 'feature { name: "extra/city" type: BYTES domain: "extra/city" value_count { min: 1 max: 1 } }'
    inferred = schema_of(
        'feature { name: "image/channels" type: INT bool_domain {} shape { dim { size: 1 } } }'
        'feature { name: "image/class/label" type: INT domain: "image/class/label" }'
        'feature { name: "image/class/text" type: BYTES domain: "image/class/text" presence { min_count: 1 } }'
        'feature { name: "image/mean_rgb" type: FLOAT }'
        + user
        + 'string_domain { name: "image/class/label" value: "0" }'
        'string_domain { name: "image/class/text" value: "cat" }'
        'string_domain { name: "extra/city" value: "Ulm" }'
    )
    before = inferred.SerializeToString()
    required = "presence { min_fraction: 1 min_count: 1 }"
    assert add_manifest_domains(inferred, dataset_of(), {}) == schema_of(
        'feature { name: "image/channels" type: INT int_domain { min: 1 max: 3 }'
        f"shape {{ dim {{ size: 1 }} }} {required} }}"
        'feature { name: "image/class/label" type: INT int_domain { min: 0 max: 1 is_categorical: true }'
        f"shape {{ dim {{ size: 1 }} }} {required} }}"
        'feature { name: "image/class/text" type: BYTES domain: "image/class/text"'
        f"shape {{ dim {{ size: 1 }} }} {required} }}"
        'feature { name: "image/mean_rgb" type: FLOAT float_domain { min: 0 max: 255 }'
        f"shape {{ dim {{ size: 3 }} }} {required} }}"
        + user
        + 'string_domain { name: "image/class/text" value: "cat" value: "dog" }'
        'string_domain { name: "extra/city" value: "Ulm" }'
    )
    assert inferred.SerializeToString() == before


def test_images_of_many_labels_have_up_to_all_of_them():
    inferred = schema_of('feature { name: "image/class/text" type: BYTES shape { dim { size: 1 } } }')
    [feature] = add_manifest_domains(inferred, dataset_of(label_kind="multi"), {}).feature
    assert (feature.value_count.min, feature.value_count.max) == (0, 2)
    assert feature.presence.min_fraction == 1
    assert feature.WhichOneof("shape_type") == "value_count"
