"""The strategy of the resolver: which of all datasets of a pipeline is the one before."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx import v1 as tfx

from components.image_example_gen.names import DIGEST_KEY

CURRENT_KEY = "examples"
PREVIOUS_KEY = "previous"
VERDICTS_KEY = "verdicts"


class PreviousSpanStrategy(tfx.dsl.experimental.ResolverStrategy):
    """Resolves the newest dataset that came before the current one, has another content and passed the gate.

    Datasets are ordered by span, version and id. An older span that runs again has therefore the same one before it as
    when it ran first, and so has a run that is served from the cache. Without spans the order is that of their making.

    A dataset that the gate stopped is no baseline: the next one like it would show no drift, and pass.
    """

    def resolve_artifacts(
        self,
        store: Any,
        input_dict: dict[str, list[types.Artifact]],
    ) -> dict[str, list[types.Artifact]]:
        """Returns the same keys, with at most one dataset under `previous` and no verdict.

        Args:
          store: ML Metadata.
          input_dict: `examples` of this run, `previous`: all of this pipeline, `verdicts`: all of this pipeline.
        """
        current = input_dict[CURRENT_KEY]
        passed = {_digest(verdict) for verdict in input_dict[VERDICTS_KEY]}
        earlier = [artifact for artifact in input_dict[PREVIOUS_KEY] if current and _is_before(artifact, current[0])]
        known = [artifact for artifact in earlier if _digest(artifact) and _digest(artifact) in passed]
        newest = [max(known, key=_place)] if known else []
        return {CURRENT_KEY: current, PREVIOUS_KEY: newest, VERDICTS_KEY: []}


def _is_before(artifact: types.Artifact, current: types.Artifact) -> bool:
    return _place(artifact) < _place(current) and _digest(artifact) != _digest(current)


def _place(artifact: types.Artifact) -> tuple[int, int, int]:
    return artifact.span, artifact.version, artifact.id


def _digest(artifact: types.Artifact) -> str:
    return artifact.get_string_custom_property(DIGEST_KEY)
