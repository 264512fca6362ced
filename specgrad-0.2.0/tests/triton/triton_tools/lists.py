"""Lengths of the tensors that are filtered, per architecture."""

from specgrad_kernels.backends.triton.precompile import LAYERS as MODELS

__all__ = ["MODELS"]
