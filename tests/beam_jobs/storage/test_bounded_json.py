from __future__ import annotations

import json

import pytest

from beam_jobs import storage

DEEP = "[" * 100_000
AT_THE_LIMIT = "[" * storage._MAX_JSON_DEPTH + "]" * storage._MAX_JSON_DEPTH


def test_what_an_ingest_writes_is_read(tmp_path):
    value = {"a": [1, {"b": None}], "c": "ü" * 1000}
    (tmp_path / "x.json").write_text(json.dumps(value))
    assert storage.read_json(str(tmp_path / "x.json")) == value
    assert storage.parse_json(AT_THE_LIMIT) == json.loads(AT_THE_LIMIT)


@pytest.mark.parametrize("text", [DEEP, f"[{AT_THE_LIMIT}]", '{"a":' * 65 + "1" + "}" * 65])
def test_a_deep_value_is_refused(text):
    with pytest.raises(ValueError, match=r"its JSON is nested more than 64 deep|Expecting"):
        storage.parse_json(text)


def test_a_large_file_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MAX_JSON_BYTES", 10)
    (tmp_path / "x.json").write_text('"12345678"')
    assert storage.read_json(str(tmp_path / "x.json")) == "12345678"
    (tmp_path / "x.json").write_text('"123456789"')
    with pytest.raises(ValueError, match="it has more than 10 bytes"):
        storage.read_json(str(tmp_path / "x.json"))
