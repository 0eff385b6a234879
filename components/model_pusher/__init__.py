"""Pushes a model whole or not at all."""
