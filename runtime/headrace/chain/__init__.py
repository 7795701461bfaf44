"""The user's operators, fused into one generated function on each side of the hand-off."""
