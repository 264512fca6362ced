"""Cost of the op, against what people would write without it."""
