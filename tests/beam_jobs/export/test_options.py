"""The description of a dataset, as Croissant and the dataset card of Hugging Face have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from beam_jobs.errors import OptionError
from beam_jobs.export.options import ExportOptions
from beam_jobs.export.run import export
from beam_jobs.ingest import run
from beam_jobs.options import About, IngestOptions
from tests.make_images import class_folders


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("CC-BY-4.0", "https://spdx.org/licenses/CC-BY-4.0.html"),
        ("cc0-1.0", "https://spdx.org/licenses/CC0-1.0.html"),  # identifiers are the same in any case
        ("https://example.org/licence?v=2", "https://example.org/licence?v=2"),
    ],
)
def test_a_licence_becomes_its_url(given, url):
    assert About(license=given).license_url == url


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"license": "CC-BY"}, "license is 'CC-BY'; it must be the URL of a licence, or an SPDX identifier"),
        ({"license": "MIT OR Apache-2.0"}, "license is 'MIT OR Apache-2.0'"),
        ({"license": "javascript:alert(1)"}, "license is 'javascript:alert"),
        ({"url": "example.org"}, "url is 'example.org'; it must begin with https:// or http://"),
        ({"url": "https://a b"}, "have no space"),
        ({"creators": ("Ada", " ")}, "creator is ('Ada', ' '); it must be one line without spaces around it"),
        ({"organizations": ("",)}, "organization is ('',); it must be one line"),
        ({"title": "one\ntwo"}, "title is ('one\\ntwo',); it must be one line"),
        ({"license": "(MIT)"}, "license is '(MIT)'"),
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


PAGE, SPDX = "https://example.org/licence", "https://spdx.org/licenses"
ABOUT = About(
    title="Two scenes",
    license="MIT",
    creators=("Ada", "Bob"),
    organizations=("Example Lab",),
    intended_use="To tell sky from petals.",
    citation="@misc{photos}\n```",
    url="https://example.org/photos",
    date_published="2026-01-31",
)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with a description, and its exports. Read only."""
    folder = tmp_path_factory.mktemp("described")
    photos = class_folders(folder / "photos", per_class=4)
    run(IngestOptions(source=str(photos), out=str(folder / "dataset"), splits={"train": 1, "eval": 1}, about=ABOUT))
    return folder


@pytest.mark.parametrize("overridden", [False, True])
def test_a_dataset_carries_its_description_into_croissant_and_an_export_may_override_it(
    described, tmp_path, overridden
):
    given = About(title="Mine", creators=("Carl",)) if overridden else About()
    export(ExportOptions(dataset=str(described / "dataset"), to="croissant", out=str(tmp_path / "out"), about=given))
    found = json.loads((tmp_path / "out" / "croissant.json").read_text())
    people = ["Carl"] if overridden else ["Ada", "Bob"]
    expected = {
        "alternateName": "Mine" if overridden else "Two scenes",
        "name": "Mine" if overridden else "Two_scenes",
        "license": "https://spdx.org/licenses/MIT.html",
        "creator": [
            *({"@type": "sc:Person", "name": name} for name in people),
            {"@type": "sc:Organization", "name": "Example Lab"},
        ],
        "citeAs": "@misc{photos}\n```",
        "url": "https://example.org/photos",
        "datePublished": "2026-01-31",
    }
    assert {name: found[name] for name in expected} == expected
    assert found["description"].startswith("To tell sky from petals. 8 images (")


def test_what_is_unknown_is_left_out(dataset, tmp_path):
    export(ExportOptions(dataset=str(dataset), to="croissant", out=str(tmp_path / "out")))
    found = json.loads((tmp_path / "out" / "croissant.json").read_text())
    assert not found.keys() & {"alternateName", "license", "creator", "citeAs", "url", "datePublished"}
    export(ExportOptions(dataset=str(dataset), to="parquet", out=str(tmp_path / "rows")))
    assert (tmp_path / "rows" / "README.md").read_text().endswith("\n---\n")


@pytest.mark.parametrize(
    ("given", "front"),
    [
        ({}, ("Two scenes", "mit", None, None)),
        ({"license": PAGE}, ("Two scenes", "other", PAGE, PAGE)),
        # Which the Hub calls odbl.
        ({"title": "\U0001f63a", "license": "ODbL-1.0"}, ("\U0001f63a", "other", "ODbL-1.0", f"{SPDX}/ODbL-1.0.html")),
    ],
)
def test_the_dataset_card_of_the_hub_has_the_description(described, tmp_path, given, front):
    made, out = str(described / "dataset"), str(tmp_path / "out")
    export(ExportOptions(dataset=made, to="parquet", out=out, about=About(**given)))
    _, head, text = (tmp_path / "out" / "README.md").read_text().split("---\n")
    found = yaml.safe_load(head)
    assert tuple(map(found.get, ("pretty_name", "license", "license_name", "license_link"))) == front
    assert text.strip().split("\n\n") == [
        *(f"# {front[0]}", "## Intended use", "To tell sky from petals.", "## Authors", "Ada, Bob, Example Lab"),
        *("## Page", "https://example.org/photos", "## Published", "2026-01-31"),
        *("## Citation", "````\n@misc{photos}\n```\n````"),
    ]
