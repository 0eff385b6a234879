from __future__ import annotations

import pytest
from tfx import types
from tfx.types import standard_artifacts

from beam_jobs.dataset import manifest
from components.schema import schema_text
from components.schema.component import (
    InferredSchema,
    InferredSchemaExecutor,
    ReviewedSchema,
    ReviewedSchemaExecutor,
    infer,
)
from components.statistics import dataset_statistics
from tests.components.conftest import artifact, statistics_artifact

pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = 'feature { name: "image/height" type: INT }\n'


def test_the_executor_writes_what_is_inferred_from_statistics_and_dataset(dataset, tmp_path):
    counted = dataset_statistics(str(dataset), manifest.load(str(dataset)))
    statistics = statistics_artifact(tmp_path / "counted", counted)
    InferredSchemaExecutor().Do(
        {"statistics": [statistics], "examples": [artifact(standard_artifacts.Examples, dataset)]},
        {"schema": [artifact(standard_artifacts.Schema, tmp_path / "schema")]},
        {"code": "1"},
    )
    schema = schema_text.read_schema(str(tmp_path / "schema" / "schema.pbtxt"))
    assert schema == infer(counted, manifest.load(str(dataset)))
    classes = {domain.name: list(domain.value) for domain in schema.string_domain}
    assert classes == {"image/format": ["jpeg", "png"], "image/class/text": ["china", "flower"]}


def test_other_code_misses_the_cache_and_both_inputs_are_part_of_it():
    statistics = types.Channel(type=standard_artifacts.ExampleStatistics)
    examples = types.Channel(type=standard_artifacts.Examples)
    component = InferredSchema(statistics, examples, code="2")
    assert component.exec_properties == {"code": "2"}
    assert set(component.inputs) == {"statistics", "examples"}
    assert component.outputs["schema"].type is standard_artifacts.Schema


def test_the_content_of_a_reviewed_file_is_the_cache_key(tmp_path):
    path = tmp_path / "schema.pbtxt"
    path.write_text(TEXT)
    assert ReviewedSchema(str(path)).exec_properties == {"schema_text": TEXT}
    path.write_text(TEXT + TEXT.replace("height", "width"))
    assert "image/width" in ReviewedSchema(str(path)).exec_properties["schema_text"]


def test_the_executor_of_a_reviewed_schema_writes_the_text_out(tmp_path):
    schema = artifact(standard_artifacts.Schema, tmp_path)
    ReviewedSchemaExecutor().Do({}, {"schema": [schema]}, {"schema_text": TEXT})
    assert (tmp_path / "schema.pbtxt").read_text() == TEXT
