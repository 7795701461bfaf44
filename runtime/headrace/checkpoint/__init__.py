"""Acknowledgement of source batches, and the watermarks that follow from it."""
