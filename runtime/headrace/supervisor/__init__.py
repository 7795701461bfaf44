"""The supervisor process: the loop, the fleet of workers, the state directory and the way everything ends."""
