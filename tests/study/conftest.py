"""Small federations for every test of this folder."""

from federations import (
    copied,
    copies_as_workers,
    make_engine,
    no_pictures_of_runs,
    play,
    restore_threads,
    small,
    trained_once,
)

__all__ = [
    "copied",
    "copies_as_workers",
    "make_engine",
    "no_pictures_of_runs",
    "play",
    "restore_threads",
    "small",
    "trained_once",
]
