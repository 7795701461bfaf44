"""The control socket: how a running supervisor is asked and told."""
