"""Models that take encoded files, and asking them."""
