"""One typed configuration: defaults < TOML file < command line.

Every setting is a field of :class:`Config` with its help text; the command line, the file reader
and the documentation are derived from that. ``options`` holds the settings of the federated
method (``mu``, or ``fedprox.mu`` to name the method), ``model_options`` and ``data_options``
those of model and data set.
"""

# ruff: noqa: RUF009 (`setting` makes fields, a new dictionary for every instance)
from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgrad_fl.errors import ConfigError, suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Options = dict[str, Any]


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    share: bool = False,
) -> Any:
    """A field with what the command line must know of it.

    low, high: the least and the most; above: less than any value
    share: a part of a whole, which people also write in percent
    """
    metadata = dict(locals())
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Everything that decides a run.

    >>> Config(method="fedprox", options={"mu": 0.01}).rounds
    30
    >>> Config(rounds=0)
    Traceback (most recent call last):
    specgrad_fl.errors.ConfigError: rounds is 0; the least is 1
    """

    dataset: str = setting(
        "digits",
        "data set, see `specgrad-fl data list`; your own as npz:FILE, parquet:FOLDER, "
        "images:FOLDER or module:loader",
    )
    data_root: str = setting("", "folder of the data sets; by default $SPECGRAD_DATA, or ./data")
    data_options: Options = setting({}, "options of the data set, as key=value")
    partition: str = setting(
        "dirichlet", "how samples are divided over clients, see `specgrad-fl list`"
    )
    clients: int = setting(20, "clients in the federation", low=0)
    alpha: float = setting(0.1, "Dirichlet concentration; smaller is more skewed", low=0)
    partition_mode: str = setting(
        "once",
        "exhausted classes: `once` holds each sample at most once, `refill` as in the paper's "
        "line of work",
        choices=("once", "refill"),
    )
    shards_per_client: int = setting(2, "shards a client holds (partition shards)", low=1)
    samples_per_client: int = setting(500, "samples a client holds (feature_shift)", low=1)
    validation: float = setting(
        0.0,
        "share of every client's samples that is held out of training: the best round is chosen "
        "by them, and they show how well the model serves each client; the test set then is for "
        "the final number alone",
        low=0,
        high=0.9,
        share=True,
    )
    augment: bool = setting(True, "random flip and crop where the data set allows them")

    model: str = setting("resnet8", "a bundled model, or module:factory for one of your own")
    model_options: Options = setting({}, "options of the model, as key=value")
    method: str = setting("fedavg", "federated method, see `specgrad-fl list`")
    options: Options = setting({}, "options of the method, as key=value, such as mu=0.01")

    filter: str = setting(
        "none",
        "gradient filter, see `specgrad-fl list`; a+b is one after the other, a-b is a without "
        "what b removes",
    )
    ratio: float = setting(
        0.05, "share of the spectrum that the filter removes", low=0, high=1, share=True
    )
    filter_ratios: Options = setting(
        {},
        "TOML file with ratios by layer, as `specgrad-fl diagnose` writes it; a layer that it "
        "does not name takes `ratio`, and 0 leaves a layer alone",
    )
    filter_options: Options = setting(
        {}, "options of the filter, as key=value, such as window=25 or lap.window=25"
    )
    filter_select: str = setting("auto", "filtered layers: auto, a preset or a regular expression")
    filter_order: str = setting("", "flattening order of a filtered tensor, such as 0231")
    filter_backend: str = setting(
        "auto", "kernel backend, or `loop`: torch.fft layer by layer, for comparison"
    )

    rounds: int = setting(30, "communication rounds", low=1)
    active: int = setting(10, "clients that take part in a round", low=1)
    sampling: str = setting(
        "uniform",
        "draw of the active clients: exactly `active` without replacement, or a coin for each",
        choices=("uniform", "bernoulli"),
    )
    dropout: float = setting(
        0.0,
        "probability that an active client's work is lost in a round",
        low=0,
        high=0.99,
        share=True,
    )
    epochs: int = setting(1, "local epochs", low=1)
    epochs_range: str = setting(
        "", "least and most local epochs, such as 1-5: every client draws anew in each round"
    )
    batch_size: int = setting(50, "local batch size", low=1)
    lr: float = setting(0.1, "local learning rate of the first round", above=0)
    lr_decay: float = setting(0.998, "factor on the learning rate after every round", above=0)
    lr_schedule: str = setting(
        "decay",
        "learning rate by round: the factor lr_decay after every round, or after every lr_step "
        "rounds, or half a cosine down to 0",
        choices=("decay", "steps", "cosine"),
    )
    lr_step: int = setting(30, "rounds between two steps of the learning rate", low=1)
    optimizer: str = setting("sgd", "local optimizer", choices=("sgd", "adam"))
    momentum: float = setting(
        0.0, "momentum of a client's steps, from zero in every round", low=0, high=0.999
    )
    momentum_place: str = setting(
        "after",
        "momentum of the whole step, after the filter; or of the data gradient, before the filter",
        choices=("after", "before"),
    )
    nesterov: bool = setting(False, "Nesterov's form of the momentum")
    weight_decay: float = setting(1e-3, "weight decay, on every parameter", low=0)
    clip: float = setting(10.0, "bound on the gradient's global norm; 0 for none", low=0)
    clip_scope: str = setting(
        "data",
        "what is clipped: the data gradient, or with the method's linear correction (parity)",
        choices=("data", "corrected"),
    )
    server_lr: float = setting(1.0, "server learning rate", low=0)
    seed: int = setting(0, "seed of everything random", low=0)

    eval_every: int = setting(
        0,
        "evaluate after every so many rounds; 0 chooses it so that evaluation stays a small part",
        low=0,
    )
    eval_tail: int = setting(
        -1, "evaluate after each of the last so many rounds; -1 chooses: 10 in long runs", low=-1
    )
    eval_target: str = setting(
        "server",
        "what is evaluated: the server's model, or the mean of the active clients' models with the "
        "weights that the method gives them",
        choices=("server", "active_mean"),
    )
    eval_batch: int = setting(100, "batch size of the evaluation", low=1)
    target: float = setting(
        0.0, "accuracy for rounds-to-target; 0 for none", low=0, high=1, share=True
    )

    device: str = setting("cpu", "torch device, such as cpu or cuda:0")
    workers: int = setting(
        0, "client processes on the CPU; 1 trains in this process, 0 takes one for each core", low=0
    )
    threads: int = setting(1, "torch threads of each worker", low=1, high=1024)
    channels_last: bool = setting(True, "memory order of images and activations")
    amp: str = setting("off", "mixed precision", choices=("off", "bf16", "fp16"))
    compile: bool = setting(False, "torch.compile the model")
    state_ram_mib: int = setting(
        1024, "memory for per-client state; what exceeds it is kept on disk", low=0
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints", low=1)

    engine: str = setting(
        "local",
        "where clients run: `local` in processes of this machine, `flower` on Flower's SuperNodes",
        choices=("local", "flower"),
    )
    nodes: int = setting(3, "SuperNodes that `engine flower` starts on this machine", low=1)
    insecure: bool = setting(
        False, "let other users of this machine reach the SuperLink that `engine flower` starts"
    )
    min_clients: int = setting(1, "a round on Flower with fewer answers is repeated", low=1)
    client_timeout: float = setting(
        600.0,
        "seconds a round on Flower waits before it leaves out the clients that did not answer",
        low=0.1,
    )
    join_timeout: float = setting(
        300.0, "seconds to wait for the nodes of all clients at the start", low=0.1
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            kind = type(item.metadata["default"])
            value = checked(item.name, kind, getattr(self, item.name), item.metadata)
            object.__setattr__(self, item.name, value)
        object.__setattr__(self, "filter_ratios", _checked_ratios(self.filter_ratios))
        _check_filter(self.filter)
        _epochs(self.epochs_range)

    def replace(self, **changes: Any) -> Config:
        """A changed copy, checked like a new one."""
        check_names(changes)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """All settings, in the order of the class."""
        return dataclasses.asdict(self)

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their default."""
        defaults = {name: item.metadata["default"] for name, item in FIELDS.items()}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}

    def learning_rate(self, round_number: int) -> float:
        """Of a round, counted from 0."""
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round_number / self.rounds)) / 2
        steps = round_number // self.lr_step if self.lr_schedule == "steps" else round_number
        return self.lr * self.lr_decay**steps

    @property
    def fewest_and_most_epochs(self) -> tuple[int, int]:
        """Local epochs: the range, or twice the same number."""
        return _epochs(self.epochs_range) or (self.epochs, self.epochs)

    @property
    def own_code(self) -> dict[str, str]:
        """The settings that may name a user's own code."""
        return {name: getattr(self, name) for name in ("method", "model", "dataset")}

    def without_effect(self, given: Iterable[str]) -> dict[str, str]:
        """Which of the given settings change nothing here, and what they would need."""
        idle: dict[str, str] = {}
        for needs, names in NEEDS.items():
            other, unequal, value = needs.partition("!=" if "!=" in needs else "=")
            if (str(getattr(self, other)) == value) == (unequal == "!="):
                idle |= dict.fromkeys(names, needs)
        return {name: idle[name] for name in given if name in idle}

    @property
    def digest(self) -> str:
        """Fingerprint of the settings that decide the result.

        Only what differs from its default counts, so that a new setting leaves old runs valid.
        """
        decisive = {k: v for k, v in self.changed().items() if k not in EXECUTION_KEYS}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


# the first setting of each subject, in the order of the class
SUBJECTS = {
    "dataset": "data and clients",
    "model": "model and method",
    "filter": "filter",
    "rounds": "training",
    "eval_every": "evaluation",
    "device": "this machine",
    "engine": "Flower",
}
FIELDS = {item.name: item for item in dataclasses.fields(Config)}
TABLES = tuple(name for name, item in FIELDS.items() if item.metadata["default"] == {})
_FLOWER = ("nodes", "insecure", "min_clients", "client_timeout", "join_timeout")
# settings without effect on results
EXECUTION_KEYS = frozenset(
    ("data_root", "workers", "state_ram_mib", "checkpoint_every", "engine", *_FLOWER)
)
# what settings have no effect without
NEEDS = {
    "partition=dirichlet": ("alpha", "partition_mode"),
    "partition=shards": ("shards_per_client",),
    "partition=feature_shift": ("samples_per_client",),
    "filter!=none": ("ratio", *(name for name in FIELDS if name.startswith("filter_"))),
    "lr_schedule=steps": ("lr_step",),
    "optimizer=sgd": ("momentum",),
    "momentum!=0.0": ("momentum_place", "nesterov"),
    "engine=flower": _FLOWER,
}
_KIND_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table of options",
}


def checked(name: str, kind: type, value: Any, limits: Mapping[str, Any]) -> Any:
    """The value in the type of the setting of this name, where nothing is lost by that.

    limits: as of :func:`setting`
    """
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = _KIND_NAMES.get(kind, f"of type {kind.__name__}")
        raise ConfigError(f"{name} must be {wanted}; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number; got {value!r}")
    if isinstance(value, dict):
        _check_plain(name, value)
    choices, low, high, above = (limits.get(key) for key in ("choices", "low", "high", "above"))
    if choices and value not in choices:
        raise ConfigError(f"{name} is {value!r}; {suggest(str(value), choices)}")
    if low is not None and value < low:
        raise ConfigError(f"{name} is {value}; the least is {low:g}")
    if above is not None and not value > above:
        raise ConfigError(f"{name} is {value}; it must be more than {above:g}")
    if high is not None and value > high:
        shown = f"{value:g}"
        percent = f" ({float(shown) / 100:g} means {shown} %)" if limits.get("share") else ""
        raise ConfigError(f"{name} is {value}; the most is {high:g}{percent}")
    return value


def _epochs(text: str) -> tuple[int, int] | None:
    """The two numbers of ``1-5``."""
    if not text:
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise ConfigError(
            f"epochs_range is {text!r}; write the least and the most epochs, such as 1-5"
        )
    return int(low), int(high)


def _check_plain(name: str, options: Options) -> None:
    for key, value in options.items():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(each, (str, int, float)):
                raise ConfigError(
                    f"{name} gives {key} the value {each!r}; write text in quotes, a number, "
                    "true, false, or a list of those"
                )


def _check_filter(name: str) -> None:
    """Refuse a filter whose kinds do not exist; they are asked for here, since that needs torch."""
    if name == "none":
        return
    from specgrad_kernels.spec import METHODS

    kinds = re.split("[+-]", name)
    for kind in kinds:
        if kind not in METHODS:
            raise ConfigError(f"filter is {name!r}; {suggest(kind, ['none', *METHODS])}")
    if len(kinds) > 2:
        raise ConfigError(f"filter is {name!r}; combine two kinds at most, such as lap+fft")


def _checked_ratios(ratios: Options) -> Options:
    for name, ratio in ratios.items():
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
            raise ConfigError(
                f"filter_ratios gives {name} the ratio {ratio!r}; choose a number in [0, 1)"
            )
    return {name: float(ratio) for name, ratio in ratios.items()}


# what others call our settings
ALIASES = {
    "learning_rate": "lr",
    "step_size": "lr",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "local_epochs": "epochs",
    "local_batch_size": "batch_size",
    "participation": "active",
    "wd": "weight_decay",
    "algorithm": "method",
    "val_share": "validation",
}


def nearest(name: str) -> str:
    """The end of a refusal of a setting that does not exist.

    >>> nearest("learning_rate")
    "did you mean 'lr'?"
    """
    known = ALIASES.get(name)
    if known:
        return f"did you mean {known!r}?"
    return suggest(name, FIELDS, "`specgrad-fl train --help` explains all settings")


def check_names(settings: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings that do not exist, naming the nearest that does."""
    for name, value in settings.items():
        if name in FIELDS:
            continue
        if isinstance(value, dict):
            raise ConfigError(
                f"{where}there is no table [{name}]; settings stand above all tables, and the "
                f"tables are {', '.join(TABLES)}"
            )
        raise ConfigError(f"{where}unknown setting {name!r}; {nearest(name)}")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def read_ratios(path: str | Path) -> Options:
    """Ratios by layer from a TOML file that holds the table ``filter_ratios``."""
    table = _parsed(Path(path)).get("filter_ratios")
    if not isinstance(table, dict) or not table:
        raise ConfigError(
            f"{path} has no table [filter_ratios] with a ratio for each layer; write one with "
            "`specgrad-fl diagnose`"
        )
    return flat(table)


# settings of older runs that decided nothing there
_GONE = ("superlink", "tls_ca")


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, with names checked."""
    settings = _parsed(path)
    for name in _GONE:
        if settings.get(name) == "":
            del settings[name]
    check_names(settings, f"{path}: ")
    for name in TABLES:
        if isinstance(settings.get(name), dict):
            settings[name] = flat(settings[name])
    return settings


def flat(table: Mapping[str, Any], prefix: str = "") -> Options:
    """``{"fedprox": {"mu": 1}}`` as ``{"fedprox.mu": 1}``."""
    dotted: Options = {}
    for key, value in table.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        dotted.update(inner)
    return dotted


def to_toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML: scalars first, then one table for each group of options.

    >>> print(to_toml({"lr": 0.1, "options": {"fedprox.mu": 0.5}}), end="")
    lr = 0.1
    <BLANKLINE>
    [options]
    "fedprox.mu" = 0.5
    """
    lines = [f"{k} = {_toml(v)}" for k, v in settings.items() if not isinstance(v, dict)]
    for name, table in settings.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{name}]"]
            lines += [f"{_toml(key)} = {_toml(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
