"""What the owner says of a dataset, as Croissant has it."""

from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.export.options import About, ExportOptions
from beam_jobs.export.run import export


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("CC-BY-4.0", "https://spdx.org/licenses/CC-BY-4.0.html"),
        ("cc0-1.0", "https://spdx.org/licenses/CC0-1.0.html"),  # identifiers are the same in any case
        ("https://example.org/licence?v=2", "https://example.org/licence?v=2"),
    ],
)
def test_a_licence_becomes_its_url(given, url):
    assert About(license=given).to_jsonld() == {"license": url}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"license": "CC-BY"}, "license is 'CC-BY'; it must be the URL of a licence, or an SPDX identifier"),
        ({"license": "MIT OR Apache-2.0"}, "license is 'MIT OR Apache-2.0'"),
        ({"license": "javascript:alert(1)"}, "license is 'javascript:alert"),
        ({"url": "example.org"}, "url is 'example.org'; it must begin with https:// or http://"),
        ({"url": "https://a b"}, "have no space"),
        ({"creators": ("Ada", " ")}, "a creator is empty"),
        ({"organizations": ("",)}, "a creator is empty"),
        ({"date_published": "31.1.2026"}, "date_published is '31.1.2026'; it must be a day, such as 2026-01-31"),
        ({"date_published": "2026-02-30"}, "date_published is '2026-02-30'"),
    ],
    ids=str,
)
def test_what_is_no_such_value_is_named(given, message):
    with pytest.raises(OptionError) as told:
        About(**given)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_the_metadata_says_what_is_known_and_nothing_else(dataset):
    about = About(
        license="MIT",
        creators=("Ada", "Bob"),
        organizations=("Example Lab",),
        citation="@misc{photos}",
        url="https://example.org/photos",
        date_published="2026-01-31",
    )
    for given in (about, About()):
        export(ExportOptions(dataset=str(dataset), to="croissant", out=str(dataset), about=given))
        found = json.loads((dataset / "croissant.json").read_text())
        expected = {
            "license": "https://spdx.org/licenses/MIT.html",
            "creator": [
                {"@type": "sc:Person", "name": "Ada"},
                {"@type": "sc:Person", "name": "Bob"},
                {"@type": "sc:Organization", "name": "Example Lab"},
            ],
            "citeAs": "@misc{photos}",
            "url": "https://example.org/photos",
            "datePublished": "2026-01-31",
        }
        names = expected if given == about else {}
        assert {name: found[name] for name in expected if name in found} == {name: expected[name] for name in names}
