"""Models that take encoded files: export, preprocessing and prediction."""
