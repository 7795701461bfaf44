"""The chain's terminal stage: rows become sealed chunks of shards."""
