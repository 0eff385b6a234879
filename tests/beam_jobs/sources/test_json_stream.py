"""A stream of JSON has the values of `json.loads`, wherever its text is cut."""

from __future__ import annotations

import io
import json

import pytest

from beam_jobs.errors import SourceError
from beam_jobs.sources import json_stream
from beam_jobs.sources.json_stream import JsonStream

ELEMENTS = [
    *(0, -1, 12345678901234567890, 1.5e-3, 10**400, float("inf"), True, None, "", 'é中😀 "\\ \n \u2028', "\ud800"),
    *([], {}, [[1], {"a": {"b": [2, "]}"]}}]),
]


def text_of(elements, **options):
    return json.dumps({"info": {"a": 1}, "list": elements, "empty": [], "none": None}, **options)


def read(text):
    stream = JsonStream("a.json", io.StringIO(text))
    values = {key: list(stream.elements()) if stream.peek() == "[" else stream.value() for key in stream.members()}
    assert stream.peek() == ""
    return values


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"ensure_ascii": False, "separators": (",", ":")}], ids=str)
def test_values_are_those_of_the_whole_text(block, options, monkeypatch):
    monkeypatch.setattr(json_stream, "_BLOCK_CHARS", block)
    text = text_of(ELEMENTS, **options)
    assert read(text) == json.loads(text)


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_a_text_that_is_cut_anywhere_is_no_json(block, monkeypatch):
    monkeypatch.setattr(json_stream, "_BLOCK_CHARS", block)
    text = text_of(ELEMENTS)
    for end in range(len(text)):
        with pytest.raises(SourceError, match=r"^a\.json is not JSON: .* at character \d+$"):
            read(text[:end])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": [1 2]}', ", or ] is missing at character 9"),
        ('{"a" 1}', ": is missing at character 5"),
        ('{"a": 1,}', "Expecting value at character 8"),
        ("{1: 2}", "a key is not text at character 2"),
        ('{"a": [tru]}', "Expecting value at character 7"),
        ('{"a": "' + "x" * 300, "a value of more than 200 characters begins at character 6"),
        ('{"a": {"b": ' + "1, " * 300, "Expecting property name enclosed in double quotes at character "),
    ],
)
def test_what_is_no_json_is_named_with_its_position(text, problem, monkeypatch):
    monkeypatch.setattr(json_stream, "_MAX_VALUE_CHARS", 200)
    monkeypatch.setattr(json_stream, "_BLOCK_CHARS", 50)
    with pytest.raises(SourceError, match=f"^a.json is not JSON: {problem}"):
        read(text)


def test_what_is_nested_without_end_is_no_json():
    with pytest.raises(SourceError, match=r"^a\.json is not JSON: maximum recursion depth exceeded.* at character 6"):
        read('{"a": {' + '"a": {' * 100_000)


def test_a_file_that_cannot_be_read_is_no_fault_of_its_text():
    class Failing(io.StringIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    with pytest.raises(SourceError, match=r"^a\.json cannot be read: Input/output error$"):
        JsonStream("a.json", Failing()).peek()
