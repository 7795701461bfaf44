"""Leases and fences: who holds a chunk, and which completion of it still counts."""
