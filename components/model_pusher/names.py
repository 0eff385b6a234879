"""Names that others must know without loading TFX."""

PARTIAL_PREFIX = ".pushing-"  # no number, so that neither a model server nor `feedline predict` takes it for a version
