"""Settings, where each came from, and whether a plan made of them can work."""
