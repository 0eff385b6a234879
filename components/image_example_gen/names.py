"""Names that the component, its driver and its executor share."""

EXAMPLES_KEY = "examples"
OPTIONS_KEY = "options"
DATASET_KEY = "dataset"
PRODUCER_KEY = "producer"
FINGERPRINT_KEY = "input_fingerprint"  # the names TFX's own ExampleGen uses
SPAN_KEY = "span"
VERSION_KEY = "version"
DIGEST_KEY = "dataset_digest"
