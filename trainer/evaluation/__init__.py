"""Figures of a model on a split, with confidence intervals."""
