"""Shared memory and pipes: the slots that hold chunks, and the records that speak of them."""
