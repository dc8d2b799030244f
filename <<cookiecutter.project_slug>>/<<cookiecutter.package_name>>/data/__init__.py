"""Images: how a file is read, and the data modules that serve batches (configs/data)."""
