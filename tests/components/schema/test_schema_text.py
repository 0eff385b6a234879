from __future__ import annotations

import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs.errors import OptionError
from components.schema.schema_text import Row, changes, difference, domain_text, read_schema, rows, write_schema


def schema_of(*features: str, rest: str = "") -> schema_pb2.Schema:
    return text_format.Parse("".join(f"feature {{ {text} }}" for text in features) + rest, schema_pb2.Schema())


CITIES = 'string_domain { name: "cities" value: "Ulm" value: "Köln" }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name: "a"', {"type": "any", "presence": "optional", "shape": "any"}),
        (
            'name: "a" type: INT presence { min_fraction: 1 } shape {dim {size: 3}} int_domain { min: 8 max: 32768 }',
            {"type": "int", "presence": "required", "shape": "3", "domain": "8 to 32,768"},
        ),
        ('name: "a" type: BYTES string_domain { value: "x" }', {"type": "bytes", "domain": "set", "values": ("x",)}),
        (
            'name: "a" type: FLOAT presence { min_fraction: 1 min_count: 1000 }',
            {"type": "float", "presence": "required, at least 1,000"},
        ),
        ('name: "a" presence { min_fraction: 0.9 min_count: 1 }', {"presence": "in 90 %"}),
        ('name: "a" presence { min_count: 1 }', {"presence": "at least 1"}),
        ('name: "a" shape { dim { size: 2 } dim { size: 3 } }', {"shape": "2x3"}),
        ('name: "a" shape { }', {"shape": "scalar"}),
        ('name: "a" value_count { min: 1 }', {"shape": "1 or more"}),
        ('name: "a" value_count { min: 0 max: 5 }', {"shape": "0-5"}),
        ('name: "a" value_count { min: 1 max: 1 }', {"shape": "1"}),
        ('name: "a" int_domain { min: 0 }', {"domain": "0 or more"}),
        ('name: "a" int_domain { max: 7 }', {"domain": "7 or less"}),
        ('name: "a" int_domain { }', {"domain": "any number"}),
        ('name: "a" float_domain { min: 0.05 max: 20 }', {"domain": "0.05 to 20"}),
        ('name: "a" float_domain { min: 0.050001 }', {"domain": "0.050001 or more"}),
        ('name: "a" bool_domain { }', {"domain": "true or false"}),
        ('name: "a" domain: "cities"', {"domain": "set", "values": ("Ulm", "Köln")}),
        ('name: "a" domain: "none"', {"other": 'domain: "none"'}),
        ('name: "a" image_domain { }', {"other": "image_domain { }"}),
        (
            'name: "a" int_domain { max: 7 is_categorical: true }',
            {"domain": "7 or less", "other": "int_domain { is_categorical: true }"},
        ),
        ('name: "a" not_in_environment: "SERVING"', {"other": 'not_in_environment: "SERVING"'}),
    ],
)
def test_a_row_says_what_the_schema_says(text, expected):
    [row] = rows(schema_of(text, rest=CITIES))
    assert row == Row(**{"name": "a", "type": "any", "presence": "optional", "shape": "any", **expected})


def test_what_is_said_of_the_whole_schema_is_a_row_too():
    [row] = rows(schema_of(rest='default_environment: "TRAINING"'))
    assert row == Row(name="(schema)", other='default_environment: "TRAINING"')


def test_long_sets_are_cut_in_a_table_and_whole_in_a_row():
    values = tuple(f"class {index}" for index in range(2000))
    row = Row(name="a", domain="set", values=values)
    assert domain_text(row).endswith("... (2,000 values)")
    assert len(domain_text(row)) < 100
    assert row.to_json()["values"] == list(values)
    assert domain_text(Row(name="a", domain="set", values=("x", "y"))) == "x, y"


def test_order_is_no_difference():
    one = schema_of('name: "a"', 'name: "b" domain: "cities"', rest=CITIES)
    other = schema_of(
        'name: "b" domain: "cities"', 'name: "a"', rest='string_domain { name: "cities" value: "Köln" value: "Ulm" }'
    )
    found = difference(one, other)
    assert (len(found), found.added, found.removed, found.changed) == (0, (), (), {})


def test_added_removed_and_changed_features_are_told_apart():
    old = schema_of('name: "gone"', 'name: "same" type: INT', 'name: "wide" int_domain { max: 9 }')
    new = schema_of('name: "same" type: INT', 'name: "wide" int_domain { max: 8 }', 'name: "new"')
    found = difference(old, new)
    assert [row.name for row in found.added] == ["new"]
    assert [row.name for row in found.removed] == ["gone"]
    assert {name: changes(*pair) for name, pair in found.changed.items()} == {
        "wide": {"domain": ("9 or less", "8 or less")}
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("type: INT", "type: FLOAT", "type"),
        ("presence { min_fraction: 1 }", "presence { min_fraction: 0.5 }", "presence"),
        ("value_count { min: 1 }", "value_count { min: 1 max: 1 }", "shape"),
        ("bool_domain { }", "", "domain"),
        ("float_domain { max: 0.30000001 }", "float_domain { max: 0.3000001 }", "domain"),
        ("", "lifecycle_stage: BETA", "other"),
        ("drift_comparator { }", "drift_comparator { infinity_norm { threshold: 0.1 } }", "other"),
    ],
)
def test_no_change_is_passed_over(old, new, field):
    found = difference(schema_of(f'name: "a" {old}'), schema_of(f'name: "a" {new}'))
    assert list(changes(*found.changed["a"])) == [field]


def test_of_two_long_sets_what_only_one_has_is_named():
    old = Row(name="a", values=tuple(f"class {index}" for index in range(1000)))
    new = Row(name="a", values=(*old.values[1:], "cat", "dog"))
    assert changes(old, new) == {"values": ("1000 values, with class 0", "1001 values, with cat, dog")}


def test_a_schema_survives_its_file_and_people_can_read_it(tmp_path):
    schema = schema_pb2.Schema()
    schema.feature.add(name="image/class/text", type=schema_pb2.BYTES, domain="kinds")
    schema.string_domain.add(name="kinds", value=["Tür", "日本"])
    write_schema(schema, str(tmp_path / "schema.pbtxt"))
    assert read_schema(str(tmp_path / "schema.pbtxt")) == schema
    assert 'value: "Tür"' in (tmp_path / "schema.pbtxt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be used: No such file or directory"),
        (b"feature {", 'cannot be used: 1:9 : Expected "}"'),
        (b"\xff", "can't decode"),
        (b"feature { struct_domain { " * 2_000, "cannot be used: it is nested too deep"),
        (b"#" * ((16 << 20) + 1), "cannot be used: it has more than 16,777,216 bytes"),
        (b"# nothing but a remark\n", "names no feature; `feedline schema init DATASET --out FILE` writes one"),
    ],
)
def test_what_is_no_schema_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "schema.pbtxt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        read_schema(str(path))
    assert message in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    assert "\n" not in str(caught.value)
