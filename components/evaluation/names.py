"""What the configuration of Evaluator and the reader of its results both name."""

from __future__ import annotations

ACCURACY = "sparse_categorical_accuracy"
TOP_K = 5
TOP_ACCURACY = f"top_{TOP_K}_accuracy"
COUNT = "example_count"
MARGIN = "accuracy_margin"
LARGEST = "largest_class_share"
EFFECTIVE = "effective_images"
CALIBRATION_BINS = 10
# TFMA compares numbers of single precision: 36 of 40 would miss a least accuracy of 0.9.
ROUNDING = 1e-6
