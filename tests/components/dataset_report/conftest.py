from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from beam_jobs.dataset import manifest
from components.dataset_report.shown import Images, open_images
from tests import image_table


@pytest.fixture
def images_of(tmp_path_factory) -> Iterator[Callable[..., Images]]:
    """Opens the images of a dataset until the end of the test; with columns, these replace those of its table."""
    with contextlib.ExitStack() as stack:

        def opened(made: Path, **columns: list) -> Images:
            dataset = manifest.load(str(made))
            table = image_table.read(made)
            for name, values in columns.items():
                index = table.schema.get_field_index(name)
                table = table.set_column(index, name, pa.array(values, table.schema.field(name).type))
            changed = tmp_path_factory.mktemp("changed")
            shutil.copytree(made / "images", changed / "images")
            shutil.copy(made / "dataset.json", changed)
            image_table.write(changed, table)
            return stack.enter_context(open_images(str(changed), dataset))

        yield opened
