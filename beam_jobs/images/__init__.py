"""What is done with one image: its header, its pixels, its masks, and the processes that decode it."""
