"""Small federations for every test of this folder."""

from federations import *  # noqa: F403
