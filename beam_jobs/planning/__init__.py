"""What follows from the facts of all images together: copies, splits, labels and shards."""
