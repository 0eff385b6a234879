"""Evaluator: its configuration, and its measurements as plain values."""

from components.evaluation.results import load_evaluation
from components.evaluation.values import Accuracy, Bin, Calibration, Confusion, Evaluation, wilson_interval

__all__ = ["Accuracy", "Bin", "Calibration", "Confusion", "Evaluation", "load_evaluation", "wilson_interval"]
