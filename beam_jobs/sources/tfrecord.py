"""TFRecord files that are there already, of `tf.train.Example` with an encoded image in each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from beam_jobs.sources import containers
from beam_jobs.sources.examples import ExampleFile, ExampleSource
from beam_jobs.sources.hidden import OnHidden, ignore
from beam_jobs.sources.layouts import Layout, layout_of

_SPLIT_DIRECTORY = re.compile(r"(?:^|/)Split-([^/]+)/")  # of TFX `Examples`


class TfrecordSource(ExampleSource):
    """TFRecord files: one, those that a pattern matches, or all below a directory; plain, or of gzip or zlib.

    Below a directory all files count whose name holds `tfrecord`, or all when there is none such. Where the columns
    `image` and `label` are not features, the customary `image/encoded`, `image/class/text` and `image/class/label` are
    taken; the key is `image/filename` when there is one, else `FILE:INDEX`. A split column `split` that is no feature
    stands for the `Split-NAME` directories of TFX.
    """

    @property
    def base(self) -> str:
        """The directory, or the one that the names of files are relative to."""
        return self.path if containers.is_directory(self.path) else containers.base_of(self.path)

    def files(self, on_hidden: OnHidden = ignore) -> list[ExampleFile]:
        """See `ExampleSource`."""
        if containers.is_directory(self.path):
            found = containers.below(self.path, on_hidden)
            found = [container for container in found if "tfrecord" in container.name.lower()] or found
        else:
            found = containers.find(self.path, on_hidden)
        return [ExampleFile(container=container, split=_split_of(container.name)) for container in found]

    def layout(self, observed: Mapping[str, type | None]) -> Layout:
        """See `ExampleSource`."""
        by_file = self.columns.split == "split" and "split" not in observed and any(f.split for f in self.files())
        return layout_of(self.path, self.columns, observed, split_of_file=by_file)


def _split_of(name: str) -> str:
    found = _SPLIT_DIRECTORY.search(name)
    return found[1] if found else ""
