"""Small federations for every test of this folder."""

from federations import make_engine, play, restore_threads, small

__all__ = ["make_engine", "play", "restore_threads", "small"]
