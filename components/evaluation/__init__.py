"""Configuration of Evaluator, and its figures as plain values."""

from components.evaluation.results import Accuracy, Bin, Calibration, Confusion, Evaluation, load_evaluation

__all__ = ["Accuracy", "Bin", "Calibration", "Confusion", "Evaluation", "load_evaluation"]
