"""Stops the pipeline when the dataset is not fit to train on."""
