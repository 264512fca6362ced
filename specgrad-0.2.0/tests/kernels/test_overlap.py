"""Gradients that share memory are found, and only those, by the check and by a call."""

import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrad_kernels import checks, filter_grads_

searching = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bytes_of(grad):
    """Every byte that every element covers, one entry for each time it is covered."""
    starts = torch.tensor([grad.data_ptr()])
    for size, stride in zip(grad.shape, grad.stride(), strict=True):
        steps = torch.arange(size) * stride * grad.element_size()
        starts = (starts[:, None] + steps[None, :]).flatten()
    return (starts[:, None] + torch.arange(grad.element_size())[None, :]).flatten()


def shares_by_brute_force(grads):
    covered = torch.cat([bytes_of(grad) for grad in grads])
    return len(covered.unique()) < len(covered)


def python_refuses(grads):
    try:
        checks.check_overlap(grads)
    except ValueError as error:
        return "memory" in str(error)
    return False


def kernel_refuses(grads):
    """A call, with a filter that leaves everything as it is."""
    try:
        filter_grads_(grads, ratio=0, backend="cpp")
    except (RuntimeError, ValueError) as error:
        return "share" in str(error)
    return False


@st.composite
def strided(draw, storage):
    """A tensor of any sizes and strides inside the storage, as float32 or as halves of it."""
    base = draw(st.sampled_from([storage, storage.view(torch.bfloat16)]))
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    strides = draw(
        st.lists(
            st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 24, 25, 30, 60]),
            min_size=len(shape),
            max_size=len(shape),
        )
    )
    offset = draw(st.integers(0, 60))
    return base.as_strided(shape, strides, offset)


@st.composite
def sliced(draw, storage):
    """Slices and transposes of the storage seen as a matrix or a cube."""
    cube = storage.view(draw(st.sampled_from([(30, 40), (12, 10, 10), (1200,), (4, 300)])))
    parts = []
    for size in cube.shape:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start, min(size, start + 9)))
        parts.append(slice(start, stop, draw(st.integers(1, 3))))
    view = cube[tuple(parts)]
    return view.permute(draw(st.permutations(range(view.dim()))))


@searching
@given(data=st.data())
def test_verdicts_equal_brute_force(native, data):
    storage = torch.zeros(1200)
    views = st.one_of(strided(storage), sliced(storage))
    grads = data.draw(st.lists(views, min_size=1, max_size=4))
    expected = shares_by_brute_force(grads)
    assert python_refuses(grads) is expected
    assert kernel_refuses(grads) is expected


def test_two_that_overlap_inside_a_third_are_found(backend):
    base = torch.randn(2000, 4)
    outer, inner = base[:, 0], base[:1000, 1]
    before = base.clone()
    with pytest.raises(ValueError, match=r"grads\[1\] and grads\[2\] share memory"):
        filter_grads_([outer, inner, inner], method="lap", backend=backend)
    assert torch.equal(base, before)


def test_a_remembered_verdict_is_for_these_places_only(native):
    base = torch.randn(200, 4)
    apart, same = [base[:, 0], base[:, 1]], [base[:, 2], base[:, 2]]
    for _ in range(2):
        assert not kernel_refuses(apart)
        assert not kernel_refuses([base[:, 2], base[:, 3]])
        assert kernel_refuses(same)


def calls_during(function):
    """Number of Python functions called: a measure of work that no other process changes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_interleaved_slices_of_a_huge_gradient_are_told_apart(native, tmp_path):
    """Listing their 17 billion addresses would need more memory than there is, and hours."""
    rows, columns = 2**15, 2**19
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(4 * rows * columns)
    base = torch.from_file(file.name, shared=True, size=rows * columns).view(rows, columns)
    parts = [base[:, : columns // 3], base[:, columns // 3 : columns // 2], base[:, columns // 2 :]]
    assert not kernel_refuses(parts)
    assert calls_during(lambda: python_refuses(parts)) < 1000
    assert not python_refuses(parts)
    overlapping = [*parts, base[1:2, 7:9]]
    assert kernel_refuses(overlapping)
    assert python_refuses(overlapping)


def test_an_expanded_gradient_is_refused_without_a_look_at_its_elements(backend):
    expanded = torch.zeros(1, 4608).expand(2**40, 4608)
    with pytest.raises(ValueError, match="shares memory with itself"):
        filter_grads_([expanded], backend=backend)


def test_strides_with_few_common_divisors_are_told_apart(native):
    """A search over all combinations of these counts would not end."""
    sizes = (2,) * 12
    strides = (4096 * 3 + 1, 2048 * 3 + 1, 1024 * 3 + 1, 512 * 3, 256 * 3, 128 * 3)
    strides += (64 * 3, 32 * 3, 16 * 3, 8 * 3, 12, 6)
    grads = [torch.zeros(2**15 * 3).as_strided(sizes, strides, offset) for offset in (0, 1)]
    expected = shares_by_brute_force(grads)
    assert calls_during(lambda: python_refuses(grads)) < 2**24 / 100
    assert python_refuses(grads) is expected
    assert kernel_refuses(grads) is expected
