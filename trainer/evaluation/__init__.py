"""Figures of a model on a split, with intervals."""
