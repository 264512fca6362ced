"""Random calls of the native library: each keeps its promised error and writes nowhere else.

``make sanitize`` makes ten thousand of them under sanitizers.
"""

import os
import random

import numpy as np
import torch
from helpers import DTYPES, needs_long_double

from specgrad_kernels import FilterSpec, filter_grads_, layout, reference
from specgrad_kernels.backends import cpp
from specgrad_kernels.kinds import BOUNDARIES, KINDS, Bins
from specgrad_kernels.spec import is_sample_order

METHODS = [name for name, kind in KINDS.items() if kind.has_kernel]
MOST_SAMPLES = 20_000
CALLS = int(os.environ.get("SPECGRAD_CALLS", "200"))


def random_shape(draw, dims):
    """Sizes whose product is log-uniform up to the most samples."""
    left, sizes = int(MOST_SAMPLES ** draw.random()), []
    for _ in range(dims - 1):
        sizes.append(draw.randint(1, round(left**0.5)))
        left //= sizes[-1]
    return draw.sample([*sizes, left], dims)


def random_views(draw, shape, dtype):
    """Gradients of one shape that share a storage and no sample of it, and the storage."""
    axes = list(range(len(shape)))
    axes = draw.choice([axes, axes, [axes[0], *axes[2:], *axes[1:2]], draw.sample(axes, len(axes))])
    steps = [draw.choice((1, 1, 1, 1, 2, 3)) for _ in axes] if draw.random() < 0.5 else [1] * 4
    padded = [shape[axis] * step for axis, step in zip(axes, steps, strict=False)]
    offset = draw.choice((0, 0, 1, 17))
    numbers = torch.Generator().manual_seed(draw.getrandbits(60))
    filled = offset + int(np.prod(padded))
    storage = torch.randn(filled, generator=numbers, dtype=torch.float64)
    storage = ((storage + draw.choice((0, 0, 10))) * 10 ** draw.uniform(-3, 2)).to(dtype)
    views = []
    for start in range(draw.randint(1, steps[0])):
        slices = [slice(start, None, steps[0]), *(slice(None, None, each) for each in steps[1:])]
        view = storage[offset:].view(padded)[tuple(slices[: len(axes)])]
        views.append(view.permute([axes.index(axis) for axis in range(len(axes))]))
    return views, storage


def random_options(draw, dims, count):
    """Arguments of ``filter_grads_`` for gradients of at least so many dimensions."""
    method = draw.choice(METHODS)
    ratios = [draw.choice((0.05, draw.randrange(100) / 100)) for _ in range(count)]
    values = {
        "ratio": draw.choice((ratios, ratios[0])),
        "window": draw.choice((None, 3 + 2 * draw.randrange(9), 3 + 2 * draw.randrange(999))),
        "sigma": draw.choice((None, draw.uniform(0.3, 3), draw.uniform(3, 200))),
        "boundary": draw.choice(BOUNDARIES),
        "batch_dims": draw.randint(0, min(1, dims)),
        "nonfinite": draw.choice(("propagate", "propagate", "raise")),
        "strategy": draw.choice(("auto", "auto", "full")),
        "seed": draw.randrange(3),
        "group_dims": draw.randint(0, dims),
        "gains": [(0, draw.choice((0, 0.5))), (draw.uniform(0.01, 0.9), 1.5), (1, draw.random())],
    }
    return {name: values[name] for name in FilterSpec.options_of(method) if name in values} | {
        "method": method
    }


def in_filtered_order(grad, spec):
    """The gradient with the axes or samples that the spec's order asks for."""
    if not is_sample_order(spec.order):
        return layout.permute_axes([grad], spec)[0] if spec.order else grad
    flat = layout.flatten(grad, spec)
    return flat[:, layout.sample_order(flat.shape[1], spec)].reshape(grad.shape)


def exact(signals, numbers):
    """The filtered signals, those of float64 in long double."""
    wide = np.longdouble if signals.dtype == torch.float64 else np.float64
    given = signals.double().numpy().astype(wide)
    d = given.shape[1]
    if isinstance(numbers, Bins):
        factors = np.ones(d // 2 + 1)
        factors[: len(numbers.removed)] -= numbers.removed
        return np.fft.irfft(np.fft.rfft(given) * factors, d)
    radius = numbers.radius
    if radius == 0:
        return given - given
    size = 2 ** int(d + 2 * radius).bit_length()
    both_sides = np.concatenate([numbers.weights[:0:-1], numbers.weights]).astype(wide)

    def averages(extended):
        spectra = np.fft.rfft(extended, size) * np.fft.rfft(both_sides, size)
        return np.fft.irfft(spectra, size)[:, 2 * radius : 2 * radius + d]

    if numbers.boundary == "count":
        ends = ((0, 0), (radius, radius))
        inside = averages(np.pad(np.ones_like(given[:1]), ends))
        return given - averages(np.pad(given, ends)) / inside
    extended = reference._extend(signals.double(), radius, numbers.boundary)
    return given - averages(extended.numpy().astype(wide))


def check_result(filtered, given, spec, index):
    """Compare each signal with the reference."""
    filtered, given = (in_filtered_order(grad, spec) for grad in (filtered, given))
    shape = layout.signal_shape(given.shape, spec)
    parameters = spec.kind.parameters(spec, shape, index)
    if parameters is None:
        assert torch.equal(filtered, given)
        return
    signals = layout.flatten(given, spec)
    d = signals.shape[1]
    results = layout.flatten(filtered, spec).double().numpy()
    error = (results - exact(signals, spec.kind.numbers(parameters, d, spec))).astype(np.float64)
    bound = cpp.explain(spec, d, index, given.dtype)[1]
    # below the smallest normal number, rounding costs half of the smallest subnormal one
    half = torch.finfo(given.dtype).smallest_normal * torch.finfo(given.dtype).eps / 2
    most = bound * signals.double().norm(dim=1).numpy() + half * d**0.5
    assert np.all(np.linalg.norm(error, axis=1) <= most)


def check_random_call(seed):
    """Make one call; whatever it is follows from the seed."""
    draw = random.Random(seed)
    same = draw.randint(0, 4)
    dims = [same or draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    drawn = [random_views(draw, random_shape(draw, each), draw.choice(DTYPES)) for each in dims]
    grads = [view for views, _ in drawn for view in views]
    options = random_options(draw, min(dims), len(grads))
    if same and draw.random() < 0.3:
        axes = range(same - options["batch_dims"])
        options["order"] = "".join(map(str, draw.sample(axes, len(axes)))) or None
    elif options.get("group_dims", 0) == 0 and draw.random() < 0.3:
        options["order"] = "random:5"
    before = [storage.clone() for _, storage in drawn]
    filter_grads_(grads, backend="cpp", **options)
    spec, index = FilterSpec(**options), 0
    for (views, storage), old in zip(drawn, before, strict=True):
        for view in views:
            given = old.as_strided(view.shape, view.stride(), view.storage_offset())
            check_result(view, given, spec, index)
            given.copy_(view)
            index += 1
        assert torch.equal(storage, old)  # beside the gradients


@needs_long_double
def test_random_calls(native, threads):
    for seed in range(CALLS):
        threads(1 + (seed % 4 == 0))
        try:
            check_random_call(seed)
        except Exception as error:
            raise AssertionError(f"call {seed}") from error
