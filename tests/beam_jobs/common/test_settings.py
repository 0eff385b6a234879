from __future__ import annotations

from typing import Annotated

import pytest
from annotated_types import Le
from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, Count, Field, OneOf, fields, from_mapping
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.stages.publish import dataset_options
from pipeline.cli.ingest_options import collect_option_settings


@dataclass(frozen=True, kw_only=True, config=STRICT)
class More(IngestOptions):
    """An ingest with two options more.

    Attributes:
      tint: how much of the colour is added, 0-9. More than that hides the picture.
      hurry: what to leave out: `source` or nothing.
    """

    tint: Annotated[Count, Le(9), Field(heading="Pixels")] = 0
    hurry: Annotated[str, OneOf(("nothing", "pauses")), Field(scope="run")] = "nothing"


def test_a_new_option_is_one_field_for_checks_files_the_command_line_and_the_dataset():
    base = More(source="photos", out="dataset")
    tinted = from_mapping(More, {"source": "photos", "out": "dataset", "tint": 3, "hurry": "pauses"}, "ingest")
    assert More.from_json(tinted.to_json()) == tinted
    assert tinted.digest() != base.digest()
    assert More(source="photos", out="dataset", hurry="pauses").digest() == base.digest()
    assert (dataset_options(tinted)["tint"], "hurry" in dataset_options(tinted)) == (3, False)
    with pytest.raises(OptionError, match="^ingest.tint is 10; it must be a whole number from 0 to 9$"):
        from_mapping(More, {"source": "photos", "out": "dataset", "tint": 10}, "ingest")
    option_settings = {setting.option: setting for setting in collect_option_settings(More)}
    assert (option_settings["--tint"].heading, option_settings["--tint"].path) == ("Pixels", ("tint",))
    help_of = {
        option: setting.click_option()(lambda: None).__click_params__[0].help
        for option, setting in option_settings.items()
    }
    assert help_of["--tint"] == "How much of the colour is added, 0-9.  [default: 0]"


def test_a_setting_of_a_section_is_named_with_its_keys():
    with pytest.raises(OptionError) as caught:
        from_mapping(IngestOptions, {"source": "photos", "out": "x", "limits": {"max_bytes": "many"}}, "ingest")
    assert caught.value.keys == ("ingest.limits.max_bytes",)


def test_options_are_given_by_name():
    with pytest.raises(TypeError, match="as keyword arguments"):
        IngestOptions("photos", "dataset")
    with pytest.raises(OptionError, match="there is no setting 'shard_mbs'; did you mean shard_mb?"):
        IngestOptions(source="photos", out="dataset", shard_mbs=1.0)
    assert fields(IngestOptions)["source"].is_required
