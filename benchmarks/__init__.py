"""What the op costs, against what people would write without it."""
