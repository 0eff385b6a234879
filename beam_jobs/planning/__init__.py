"""Planning: from the facts of all images, finds duplicates, and assigns splits, class indices and shards."""
