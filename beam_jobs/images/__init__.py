"""The processing of a single image: header, pixels, masks, and the processes that decode it."""
