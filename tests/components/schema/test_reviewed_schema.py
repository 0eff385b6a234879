from __future__ import annotations

from tfx import types
from tfx.types import standard_artifacts

from components.schema.component import ReviewedSchema, ReviewedSchemaExecutor

TEXT = 'feature { name: "image/height" type: INT }\n'


def test_the_content_of_the_file_is_the_cache_key(tmp_path):
    path = tmp_path / "schema.pbtxt"
    path.write_text(TEXT)
    assert ReviewedSchema(str(path)).exec_properties == {"schema_text": TEXT}
    path.write_text(TEXT + TEXT.replace("height", "width"))
    assert "image/width" in ReviewedSchema(str(path)).exec_properties["schema_text"]


def test_the_executor_writes_the_text_out(tmp_path):
    schema: types.Artifact = standard_artifacts.Schema()
    schema.uri = str(tmp_path)
    ReviewedSchemaExecutor().Do({}, {"schema": [schema]}, {"schema_text": TEXT})
    assert (tmp_path / "schema.pbtxt").read_text() == TEXT
