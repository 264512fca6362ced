"""Is a federation drifting, where in the spectrum, and which layers should be filtered?

collect.py     gradients of chosen clients at given weights
replay.py      the same along a run, at chosen rounds
similarity.py  CKA of local models
files.py       from gradients that the user has
report.py, pictures.py, command.py    what `specgrad-fl diagnose` shows
"""
