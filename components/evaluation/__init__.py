"""The configuration of Evaluator, and its results as plain values."""

from components.evaluation.results import Accuracy, Bin, Calibration, Confusion, Evaluation, load_evaluation

__all__ = ["Accuracy", "Bin", "Calibration", "Confusion", "Evaluation", "load_evaluation"]
