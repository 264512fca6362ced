"""The tools find what they are for: a planted race, a planted overrun."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton_tools.order import program_order
from triton_tools.shadow import shadow_memory

BLOCK = 16


@triton.jit
def average_with_neighbour(x, n, BLOCK: tl.constexpr):
    """In place, and wrong: the first sample of the next block may be new or old."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(x + index, mask=index < n, other=0.0)
    after = tl.load(x + index + 1, mask=index + 1 < n, other=0.0)
    tl.store(x + index, 0.5 * (own + after), mask=index < n)


@triton.jit
def double_all(x, n, BLOCK: tl.constexpr):
    """Right where n is the length, an overrun where it is more."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + index, 2 * tl.load(x + index, mask=index < n, other=0.0), mask=index < n)


def _averaged():
    x = torch.arange(64.0) ** 2
    average_with_neighbour[(4,)](x, 64, BLOCK=BLOCK)
    return x


def test_reversed_order_shows_the_race():
    forwards = _averaged()
    with program_order("reversed"):
        backwards = _averaged()
    assert not torch.equal(forwards, backwards)


def test_order_is_restored():
    before = _averaged()
    with program_order(3):
        pass
    assert torch.equal(before, _averaged())


def test_shadow_memory_reports_the_race():
    with shadow_memory([]), pytest.raises(InterpreterError, match="MemoryConflict"):
        _averaged()


@pytest.mark.parametrize("n", [65, 80])
def test_shadow_memory_reports_the_overrun(n):
    padded = torch.ones(80)
    with shadow_memory([]), pytest.raises(InterpreterError, match="OutOfBounds"):
        double_all[(5,)](padded[:64], n, BLOCK=BLOCK)


def test_shadow_memory_reports_gaps_between_strided_elements():
    with shadow_memory([]), pytest.raises(InterpreterError, match="OutOfBounds"):
        double_all[(2,)](torch.ones(64)[::2], 32, BLOCK=BLOCK)


def test_shadow_memory_counts_distinct_bytes():
    with shadow_memory([]) as shadow:
        double_all[(4,)](torch.ones(64), 50, BLOCK=BLOCK)
    assert [(t.kernel, t.read, t.written) for t in shadow.traffic] == [("double_all", 200, 200)]
