"""The search for a method's settings, as the paper describes it.

A grid over the learning rate and the method's own parameters is run without the filter. While
the best setting has a neighbour that was not tried, that neighbour is tried, beyond the edge of
the grid if need be; so the setting that is reported has no better neighbour on any side.
"""
