"""Published datasets: records, shards, manifest and tables, and the functions that read them."""
