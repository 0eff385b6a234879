from __future__ import annotations

import pytest
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs.errors import OptionError
from components.schema import schema_text


def test_a_schema_survives_its_file_and_people_can_read_it(tmp_path):
    schema = schema_pb2.Schema()
    schema.feature.add(name="image/class/text", type=schema_pb2.BYTES, domain="kinds")
    schema.string_domain.add(name="kinds", value=["Tür", "日本"])
    schema_text.write_schema(schema, str(tmp_path / "schema.pbtxt"))
    assert schema_text.read_schema(str(tmp_path / "schema.pbtxt")) == schema
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
        schema_text.read_schema(str(path))
    assert message in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    assert "\n" not in str(caught.value)
