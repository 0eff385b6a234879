"""The main names of Feedline: from a folder of images to datasets for `model.fit`.

`beam_jobs` and `trainer` define all public names; this package has the names that most scripts need. The import loads
no module before a name is used.

From images to a dataset:
  ingest: `beam_jobs.run`
  IngestOptions: source, output and options of an ingest
  load, verify: the manifest of a dataset, and a check of every file: `beam_jobs.load`, `beam_jobs.verify_dataset`

From a dataset to a model:
  keras_datasets: the splits of a dataset for `model.fit`
  make_dataset, InputOptions: one split as batches of (features, label)
  export, predict: writes a SavedModel, and classifies files with it: `trainer.export`, `trainer.predict_files`

Errors:
  FeedlineError: base class; the message is one line with a remedy

Examples:
  >>> import feedline
  >>> train, evaluation = feedline.keras_datasets("dataset", image_side_px=32, batch_size=8)
  >>> train.class_names, len(train)
  (['cat', 'dog'], 5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import beam_jobs
import trainer

if TYPE_CHECKING:
    from beam_jobs import FeedlineError, IngestOptions, load
    from beam_jobs import run as ingest
    from beam_jobs import verify_dataset as verify
    from trainer import InputOptions, export, keras_datasets, make_dataset
    from trainer import predict_files as predict

__all__ = [
    "FeedlineError",
    "IngestOptions",
    "InputOptions",
    "export",
    "ingest",
    "keras_datasets",
    "load",
    "make_dataset",
    "predict",
    "verify",
]

_ORIGINAL_NAMES = {"ingest": "run", "verify": "verify_dataset", "predict": "predict_files"}  # name -> original name

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Loads a public name at the first access."""
        if name not in __all__:
            raise AttributeError(f"module 'feedline' has no attribute {name!r}; it has {', '.join(__all__)}")
        attribute = _ORIGINAL_NAMES.get(name, name)
        globals()[name] = value = getattr(beam_jobs if attribute in beam_jobs.__all__ else trainer, attribute)
        return value

    def __dir__() -> list[str]:
        """Returns the public names, loaded or not, and all other names of the package."""
        return sorted({*globals(), *__all__})
