"""Names that the component, its driver and its executor share."""

EXAMPLES_KEY = "examples"
OPTIONS_KEY = "options"
PRODUCER_KEY = "producer"
FINGERPRINT_KEY = "input_fingerprint"  # the name TFX's own ExampleGen uses
DIGEST_KEY = "dataset_digest"
