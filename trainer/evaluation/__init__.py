"""Evaluation of a model on a split: figures such as the accuracy, with confidence intervals."""
