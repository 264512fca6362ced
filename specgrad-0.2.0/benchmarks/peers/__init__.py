"""The same federated rounds in this trainer, in a plain loop and in other simulators."""
