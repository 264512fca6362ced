"""A small Flower application with Flower's own FedAvg, and the filter in its clients."""
