"""Executes the PTX that Triton emits, on the CPU, one program at a time.

Threads are numpy lanes. Anything that is not known raises: an opcode, a modifier, an access
outside the tensors, a barrier that not all threads reach.
"""

from triton_tools.ptx.machine import PtxError, PtxKernel

__all__ = ["PtxError", "PtxKernel"]
