"""What `feedline compile --target kubeflow`, and the cluster that runs its file, need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.errors import FeedlineError
from pipeline.doctor import Check, common
from pipeline.settings import placeholders

_EXTRAS = ("tfx", "kubeflow")


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about this machine and the settings. No cluster is asked: compiling needs none."""
    yield from common.basics(*_EXTRAS)
    found = [common.configured(settings), image(settings), root(settings)]
    yield from found
    if settings and all(check.ok for check in found):  # else it would say the same a second time
        yield compiled(settings)


def image(settings: Mapping[str, Any]) -> Check:
    """Checks that the settings name a container image."""
    found = str(_section(settings).get("image") or "")
    word = placeholders.in_image(found)
    return Check(
        name="container image",
        ok=bool(found) and not word,
        detail=f"{found or 'kubeflow.image is not set'}{_stands(word)}",
        remedy="docker build -t REGISTRY/feedline:1 --build-arg EXTRAS=gcp,tfx,kubeflow . && docker push "
        "REGISTRY/feedline:1, then kubeflow: {image: REGISTRY/feedline:1} in pipeline.yaml",
        needed=bool(settings),
    )


def root(settings: Mapping[str, Any]) -> Check:
    """Checks that containers can share artifacts, through a bucket."""
    found = str(_section(settings).get("pipeline_root") or settings.get("root") or "")
    word = placeholders.in_path(found)
    return Check(
        name="bucket",
        ok=found.startswith("gs://") and not word,
        detail=f"{found or 'neither root nor kubeflow.pipeline_root is set'}{_stands(word)}",
        remedy="gcloud storage buckets create gs://BUCKET, then root: gs://BUCKET/DIR in pipeline.yaml",
        needed=bool(settings),
    )


def compiled(settings: Mapping[str, Any]) -> Check:
    """Compiles the pipeline into a temporary file."""
    with tempfile.TemporaryDirectory(prefix="feedline-doctor-") as directory:
        out = os.path.join(directory, "pipeline.yaml")
        try:
            from pipeline.runners.kubeflow import compile as compile_kubeflow

            compile_kubeflow(settings, out)
        except (FeedlineError, ImportError) as error:
            lacks = isinstance(error, ImportError) or isinstance(error.__cause__, ImportError)
            remedy = common.install(f"{common.DISTRIBUTION}[{','.join(_EXTRAS)}]") if lacks else common.SHOW
            return Check(name="compile", ok=False, detail=common.last_line(str(error)), remedy=remedy)
        return Check(name="compile", ok=True, detail=f"{os.path.getsize(out):,} bytes of YAML")


def _stands(word: str) -> str:
    return f"; {word} stands for the name of yours" if word else ""


def _section(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    found = settings.get("kubeflow")
    return found if isinstance(found, Mapping) else {}
