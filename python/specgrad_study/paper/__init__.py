"""The paper's tables and figures as experiments that can be run.

An :class:`~specgrad_study.paper.model.Experiment` is a list of cells, each a configuration with a
row and a column of the paper's table. A :class:`~specgrad_study.paper.presets.Preset` says at what
size it is run. Results are read from run directories, compared with the paper's numbers
(``numbers.toml``), and the paper's claims are judged by a stated rule.
"""
