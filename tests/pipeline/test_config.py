from __future__ import annotations

import contextlib
import os
import re
from typing import Annotated

import pytest
from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, Field, Options, describe_allowed, fields, from_mapping
from beam_jobs.errors import OptionError
from pipeline.config import build, load
from pipeline.runners.local import preflight
from pipeline.settings.known_settings import sections, target_options

OPTIONS = [*sections().values(), *(cls for _, cls in target_options().values())]
# One setting of each form; within a form only the choices and the bounds differ.
HINTS = {
    re.sub("one of .*|from .*|of at .*|above .*", "", describe_allowed(one.hint, one.annotations)): one
    for cls in OPTIONS
    for one in fields(cls).values()
    if not one.section
}

MINIMAL = {"root": "work", "ingest": {"source": "photos"}}


def test_minimal_settings_take_every_default():
    config = build(MINIMAL)
    assert (config.root, config.ingest.source) == (os.path.abspath("work"), os.path.abspath("photos"))
    assert config.ingest.out == ""
    assert config.train.epochs == 10
    assert config.beam_args[:2] == ("--runner=FnApiRunner", "--direct_running_mode=in_memory")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**MINIMAL, "trian": {}}, "there is no setting 'trian'; did you mean train\\? known are root, "),
        (
            {**MINIMAL, "ingest": {"source": "x", "limits": {"min_side": 3}}},
            "'ingest.limits.min_side'; did you mean min_s",
        ),
        ({**MINIMAL, "train": {"epochs": "many"}}, "^train.epochs is the text 'many'; .* number of at least 1$"),
        ({**MINIMAL, "schema": "/nowhere/s"}, "schema is '/nowhere/s', which is not a file, and cannot"),
        ({"root": "w", "ingest": {"source": "x", "splits": {"all": 1}}}, "ingest.splits has only all; evaluation"),
        ({"root": "work", "ingest": None}, "^ingest is nothing; it must be a mapping of settings$"),
        ({"root": "w", "ingest": {"source": "x", "splits": {1: 0.5, 2: 0.5}}}, "^ingest.splits names 1; .* write '1'"),
        ({"root": "work"}, "the configuration has neither images nor a dataset; set ingest.source"),
        ({**MINIMAL, "root": ""}, "root is empty"),
        (
            {**MINIMAL, "evaluate": {"slice_by": "city"}},
            "slice_by is the text 'city'; .* list of texts, as \\[a, b\\]$",
        ),
        ({**MINIMAL, "span": 3}, "span is 3, but the source .*photos has no {SPAN} to put it in"),
        ({**MINIMAL, "name": 7}, "^name is 7; it must be a text; put it in quotes$"),
        ({**MINIMAL, "train": {"learning_rate": {"a": 1}}}, "is the mapping {a: 1}; it must be a number above 0$"),
        ({**MINIMAL, "train": ["epochs"]}, "^train is the list \\[epochs\\]; it must be a mapping of settings$"),
        ({**MINIMAL, "train": {"class_weights": 3}}, "is 3; it must be balanced or a mapping of names to numbers, as"),
        ({**MINIMAL, "name": ["x" * 999]}, r"^name is the list \[x{116}\.\.\.; it must be a text$"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(OptionError, match=message):
        build(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- a", "must contain a mapping"),
        ("a: " + "x" * (1 << 20), "is not YAML: it has more than 1,048,576 characters"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as error:
        load(str(path))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("hint", HINTS)
def test_no_error_about_a_type_speaks_python(hint):
    setting = Annotated[(HINTS[hint].hint, Field(), *HINTS[hint].annotations)]
    made = type("Made", (Options,), {"__annotations__": {"setting": setting}})
    made = dataclass(made, frozen=True, kw_only=True, config=STRICT)
    for value in (object(), None, "x", 3, True, ["x"], {"x": 1}):
        with contextlib.suppress(OptionError):
            from_mapping(made, {"setting": value}, "")
            continue
        with pytest.raises(OptionError) as error:
            from_mapping(made, {"setting": value}, "")
        said = str(error.value).removeprefix("setting is ")
        assert not re.search(r"\b(None|NoneType|True|False|dict|str|int|float|bool|tuple|Mapping|typing)\b", said), said


def test_a_remote_root_is_kept_and_joined_with_slashes_and_refused_by_the_local_runner_alone():
    config = build({**MINIMAL, "root": "gs://bucket/work"})
    assert (config.root, config.resolved().root) == ("gs://bucket/work", "gs://bucket/work")
    assert config.metadata_path == "gs://bucket/work/metadata.sqlite"
    assert config.artifacts_dir == "gs://bucket/work/artifacts"
    assert config.serving_dir == "gs://bucket/work/serving"
    with pytest.raises(OptionError, match="root is 'gs://bucket/work'; the local runner needs a local directory"):
        preflight(config)
