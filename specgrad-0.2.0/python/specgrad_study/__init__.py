"""Studies with the trainer: the paper's experiments, fair tuning, and where clients drift apart."""
