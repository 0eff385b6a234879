"""Comparisons with baselines, measured in the same run; `make bench` runs them."""
