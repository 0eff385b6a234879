"""Finds the model blessed before the one that is evaluated."""
