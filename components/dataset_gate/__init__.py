"""A gate that stops the pipeline when the dataset is unfit for training."""
