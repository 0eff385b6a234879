"""Settings of a pipeline: where they come from, what they may be, and how they are shown."""
