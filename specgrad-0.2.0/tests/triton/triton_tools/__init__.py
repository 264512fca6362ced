"""Tools that prove kernels on a machine without a GPU."""
