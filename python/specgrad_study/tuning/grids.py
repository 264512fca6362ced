"""The grids: the learning rate, and five or so values of each method's own parameters."""

from __future__ import annotations

from collections.abc import Sequence

from specgrad_fl.errors import ConfigError

from specgrad_study.tuning.search import Axis, rounded

LR = Axis("lr", (0.01, 0.05, 0.1, 0.15), "difference")
# for methods without parameters of their own
FINE_LR = Axis("lr", tuple(rounded(step / 100) for step in range(1, 21)), "difference")

OWN: dict[str, tuple[Axis, ...]] = {
    "fedprox": (Axis("mu", (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),),
    "feddyn": (Axis("alpha", (1e-3, 1e-2, 3e-2, 1e-1, 3e-1)),),
    "fedcm": (Axis("alpha", (0.03, 0.05, 0.1, 0.3, 0.5), high=1.0),),
    "fedsam": (Axis("rho", (0.001, 0.01, 0.05, 0.1, 0.5)),),
    "feddisco": (
        Axis("a", (0.1, 0.3, 0.5, 0.7, 0.9), "difference"),
        Axis("b", (0.05, 0.1, 0.2)),
    ),
    "fedawa": (
        Axis("server_lr", (1e-3, 1e-2, 1e-1)),
        Axis("server_epochs", (1.0, 10.0), high=100.0, whole=True),
    ),
    "fedlws": (Axis("beta", (0.01, 0.03, 0.05, 0.1, 0.3)),),
}


def axes_of(method: str, given: Sequence[str]) -> list[Axis]:
    """The grid of a method; ``given`` are axes as ``name=value,value`` that replace its own.

    >>> [axis.name for axis in axes_of("fedprox", ["lr=0.1,0.2"])]
    ['lr', 'mu']
    """
    own = OWN.get(method, ())
    axes = {axis.name: axis for axis in (LR if own else FINE_LR, *own)}
    for text in given:
        axis = _parsed(text, axes)
        axes[axis.name] = axis
    return list(axes.values())


def _parsed(text: str, known: dict[str, Axis]) -> Axis:
    name, _, values = text.partition("=")
    try:
        numbers = tuple(sorted(float(part) for part in values.split(",")))
        like = known.get(name, Axis(name, (0.1, 1.0)))
        return Axis(name, numbers, like.steps, like.low, like.high, like.whole)
    except ValueError as error:
        raise ConfigError(
            f"grid is {text!r}; write a setting and its values, such as lr=0.01,0.1 ({error})"
        ) from None
