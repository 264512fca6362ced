"""The paper's tables and figures as experiments that can be run.

An ``Experiment`` (``experiment.py``) is a list of cells, each a configuration with a row and a
column of the paper's table. A ``Preset`` (``presets.py``) says at what size it is run. Results are
read from run directories, compared with the paper's numbers (``published.toml``), and the paper's
claims are judged by a stated rule.
"""
