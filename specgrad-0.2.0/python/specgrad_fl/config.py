"""Typed configuration of a run: defaults < TOML file < command line.

Every setting is a field of :class:`Config` with its help text; the command line, the file reader
and the documentation are derived from that. What few runs change is an option in a table:
``options`` are those of the federated method (``mu``, or ``fedprox.mu`` to name the method),
``model_options`` and ``data_options`` those of model and data set, and tables such as
``partition_options`` have the options that ``OPTIONS`` lists. An option is read like a setting:
``config.partition_mode``.
"""

# ruff: noqa: RUF009 (`setting` makes fields, a new dictionary for every instance)
from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specgrad_fl import toml
from specgrad_fl.errors import ConfigError, suggest

Options = dict[str, Any]


def limits(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    share: bool = False,
    name: str = "",
) -> dict[str, Any]:
    """Facts about a setting or option, for checks and for the command line.

    low, high: the least and the most; above: less than any value
    share: a part of a whole, which people also write in percent
    name: attribute under which an option is read, by default its key
    """
    return dict(locals())


def setting(default: Any, help: str, **about: Any) -> Any:
    """A field with the facts about it, as :func:`limits` takes them."""
    metadata = limits(default, help, **about)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def table(help: str, *, free: bool = False, **known: dict[str, Any]) -> Any:
    """A table with known options; ``free`` tables take other keys too."""
    metadata = {**limits({}, help), "known": known, "free": free}
    return field(default_factory=dict, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Settings of a run.

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
    partition_options: Options = table(
        "options of the partition, as key=value",
        mode=limits(
            "once",
            "when a class runs out: `once` holds a sample once, `refill` reuses samples",
            choices=("once", "refill"),
            name="partition_mode",
        ),
        shards=limits(2, "shards of a client", low=1, name="shards_per_client"),
        samples=limits(
            500, "samples of a client (feature_shift)", low=1, name="samples_per_client"
        ),
    )
    validation: float = setting(
        0.0,
        "share of every client's samples that is held out of training, to choose the best round "
        "and to score the model for each client",
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
        "none", "gradient filter, see `specgrad-fl list`; a+b applies two, a-b keeps the band of b"
    )
    ratio: float = setting(
        0.05, "share of the spectrum that the filter removes", low=0, high=1, share=True
    )
    filter_ratios: Options = setting(
        {},
        "TOML file with ratios by layer, as `specgrad-fl diagnose` writes it; others take `ratio`",
    )
    filter_options: Options = table(
        "options of the filter, as key=value, such as window=25 or lap.window=25",
        free=True,
        order=limits("", "flattening order, such as 0231", name="filter_order"),
        backend=limits(
            "auto", "kernel backend, or `loop`: torch.fft layer by layer", name="filter_backend"
        ),
    )
    filter_select: str = setting("auto", "filtered layers: auto, a preset or a regular expression")

    rounds: int = setting(30, "communication rounds", low=1)
    active: int = setting(10, "clients that take part in a round", low=1)
    participation_options: Options = table(
        "who takes part in a round, and how much",
        sampling=limits(
            "uniform",
            "draw of clients: exactly `active`, or each with the same probability",
            choices=("uniform", "bernoulli"),
        ),
        dropout=limits(
            0.0, "probability that a client's work is lost", low=0, high=0.99, share=True
        ),
        epochs_range=limits("", "local epochs that clients draw in each round, such as 1-5"),
    )
    epochs: int = setting(1, "local epochs", low=1)
    batch_size: int = setting(50, "local batch size", low=1)
    lr: float = setting(0.1, "local learning rate of the first round", above=0)
    lr_decay: float = setting(0.998, "factor on the learning rate after every round", above=0)
    lr_schedule: str = setting(
        "decay",
        "learning rate: times lr_decay after every round or every lr_step rounds, or half a cosine",
        choices=("decay", "steps", "cosine"),
    )
    optimizer: str = setting("sgd", "local optimizer", choices=("sgd", "adam"))
    momentum: float = setting(0.0, "momentum of a client's steps, zero at first", low=0, high=0.999)
    optimizer_options: Options = table(
        "options of the local steps, as key=value",
        nesterov=limits(False, "Nesterov's form of the momentum"),
        momentum_place=limits(
            "after",
            "momentum after the filter, or of the data gradient before it",
            choices=("after", "before"),
        ),
        lr_step=limits(30, "rounds between steps of the learning rate", low=1),
        clip_scope=limits(
            "data",
            "clip the data gradient, or the corrected one (parity)",
            choices=("data", "corrected"),
        ),
    )
    weight_decay: float = setting(1e-3, "weight decay, on every parameter", low=0)
    clip: float = setting(10.0, "bound on the gradient's global norm; 0 for none", low=0)
    server_lr: float = setting(1.0, "server learning rate", low=0)
    aggregation: str = setting(
        "mean",
        "average of the clients' weights: the method's weighted mean, or for each coordinate the "
        "median or the mean of the middle 40 %, in which all clients count the same",
        choices=("mean", "median", "trimmed_mean"),
    )
    guard: float = setting(
        10.0,
        "leave a client out of a round if its update is so many times as long as the median of "
        "the round's updates; 0 for no limit",
        low=0,
    )
    seed: int = setting(0, "seed of everything random", low=0)

    eval_every: int = setting(
        0, "rounds between evaluations; 0 chooses, for 5 % of the time", low=0
    )
    eval_tail: int = setting(
        -1, "last rounds that are all evaluated; -1 chooses: 10 in long runs", low=-1
    )
    eval_options: Options = table(
        "options of the evaluation, as key=value",
        target=limits(
            "server",
            "evaluated model: the server's, or the mean of the clients' models",
            choices=("server", "active_mean"),
            name="eval_target",
        ),
        batch=limits(
            100,
            "batch size of the evaluation, on a GPU ten times as large",
            low=1,
            name="eval_batch",
        ),
    )
    target: float = setting(
        0.0, "accuracy for rounds-to-target; 0 for none", low=0, high=1, share=True
    )

    device: str = setting(
        "cpu", "torch device, such as cpu or cuda:0; cuda:0,cuda:1 is a process for each"
    )
    workers: int = setting(
        0,
        "client processes on the CPU; 1 is this process, 0 is one for each core; on a GPU clients "
        "that are trained at once, 0 is one",
        low=0,
    )
    machine_options: Options = table(
        "options of this machine, as key=value",
        threads=limits(1, "torch threads of each worker", low=1, high=1024),
        channels_last=limits(True, "memory order of images and activations"),
        compile=limits(False, "torch.compile the model"),
        graphs=limits(True, "replay the steps of a client as CUDA graphs, where that is possible"),
        stack=limits(
            "1",
            "clients that are trained as one batch of models: 1 for one after the other, a number, "
            "or `auto` for the fastest of a short trial",
        ),
    )
    amp: str = setting("off", "mixed precision", choices=("off", "bf16", "fp16"))
    state_ram_mib: int = setting(
        1024, "MiB of memory for per-client state; the rest is on disk", low=0
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints", low=1)

    engine: str = setting(
        "local",
        "where clients run: in processes of this machine, or on Flower's SuperNodes",
        choices=("local", "flower"),
    )
    nodes: int = setting(3, "SuperNodes that `--engine flower` starts on this machine", low=1)
    engine_options: Options = table(
        "options of Flower, as key=value",
        insecure=limits(False, "let other users of this machine reach the SuperLink"),
        min_clients=limits(1, "a round with fewer answers is repeated", low=1),
        client_timeout=limits(
            600.0, "seconds before clients that did not answer are left out", low=0.1
        ),
        join_timeout=limits(300.0, "seconds to wait for all nodes at the start", low=0.1),
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            kind = type(item.metadata["default"])
            value = checked(item.name, kind, getattr(self, item.name), item.metadata)
            if "known" in item.metadata:
                value = _checked_options(item.name, value, item.metadata)
            object.__setattr__(self, item.name, value)
        object.__setattr__(self, "filter_ratios", _checked_ratios(self.filter_ratios))
        _check_filter(self.filter)
        _epochs(self.epochs_range)
        _check_stack(self.stack)

    def __getattr__(self, name: str) -> Any:
        """The value of an option, or its default."""
        if name not in OPTIONS:
            raise AttributeError(f"Config has no setting or option {name!r}")
        place = OPTIONS[name]
        return vars(self).get(place.table, {}).get(place.key, place.limits["default"])

    def replace(self, **changes: Any) -> Config:
        """A changed copy, checked like a new one; an option is changed by its own name too."""
        check_names({name: value for name, value in changes.items() if name not in OPTIONS})
        return dataclasses.replace(self, **in_tables(changes, vars(self)))

    def as_dict(self) -> dict[str, Any]:
        """All settings, in the order of the class."""
        return dataclasses.asdict(self)

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their default."""
        defaults = {name: item.metadata["default"] for name, item in FIELDS.items()}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}

    def learning_rate(self, round_number: int) -> float:
        """Learning rate of a round, counted from 0."""
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round_number / self.rounds)) / 2
        steps = round_number // self.lr_step if self.lr_schedule == "steps" else round_number
        return self.lr * self.lr_decay**steps

    @property
    def fewest_and_most_epochs(self) -> tuple[int, int]:
        """Local epochs: the range, or twice the same number."""
        return _epochs(self.epochs_range) or (self.epochs, self.epochs)

    @property
    def clients_in_a_stack(self) -> int:
        """Number of clients trained at once; 1 for an ``auto`` that no trial has replaced yet."""
        return 1 if self.stack == "auto" else int(self.stack)

    @property
    def devices(self) -> list[str]:
        """The devices that train clients, a process on each if there are several."""
        return self.device.split(",")

    @property
    def samples_scored_at_once(self) -> int:
        """Batch size of the evaluation on the configured device."""
        return self.eval_batch * (10 if self.device.startswith("cuda") else 1)

    @property
    def own_code(self) -> dict[str, str]:
        """The settings that may name a user's own code."""
        return {name: getattr(self, name) for name in CODE_KEYS}

    def without_effect(self, given: Iterable[str]) -> dict[str, str]:
        """The given settings and options that change nothing here, and what they would need."""
        idle: dict[str, str] = {}
        for needs, names in NEEDS.items():
            other, unequal, value = needs.partition("!=" if "!=" in needs else "=")
            if (str(getattr(self, other)) == value) == (unequal == "!="):
                idle |= dict.fromkeys(names, needs)
        asked = set(given)
        open_tables = asked - set(idle)
        for name, (table, key, _) in OPTIONS.items():
            if table in open_tables and key in vars(self)[table]:
                asked.add(name)
        return {name: needs for name, needs in idle.items() if name in asked}

    @property
    def digest(self) -> str:
        """Fingerprint of the settings that decide the result.

        Only what differs from its default counts, and an option under its own name, so that new
        settings and tables leave old runs valid.
        """
        decisive = {k: v for k, v in self.changed().items() if k not in EXECUTION_KEYS}
        for name, option in OPTIONS.items():
            if option.key in decisive.get(option.table, {}):
                rest = dict(decisive.pop(option.table))
                decisive[name] = rest.pop(option.key)
                decisive |= {option.table: rest} if rest else {}
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
# settings that may name a user's own code, as module:attribute
CODE_KEYS = ("method", "model", "dataset")
FIELDS = {item.name: item for item in dataclasses.fields(Config)}
TABLES = tuple(name for name, item in FIELDS.items() if item.metadata["default"] == {})


class Option(NamedTuple):
    """An option of a table, and its :func:`limits`."""

    table: str
    key: str
    limits: Mapping[str, Any]

    def __str__(self) -> str:
        """As the command line has it.

        >>> str(OPTIONS["partition_mode"])
        '--partition-option mode'
        """
        return f"--{self.table.removesuffix('s').replace('_', '-')} {self.key}"


# options by the name under which they are read; most were settings of their own once
OPTIONS = {
    about["name"] or key: Option(table, key, about)
    for table, item in FIELDS.items()
    for key, about in item.metadata.get("known", {}).items()
}
# settings without effect on results
EXECUTION_KEYS = frozenset(
    (
        "data_root",
        "workers",
        "state_ram_mib",
        "checkpoint_every",
        "engine",
        "nodes",
        "engine_options",
    )
)
# conditions, and the settings and options without effect where they do not hold
NEEDS = {
    "partition=dirichlet": ("alpha", "partition_mode"),
    "partition=shards": ("shards_per_client",),
    "partition=feature_shift": ("samples_per_client",),
    "filter!=none": ("ratio", *(n for n in (*FIELDS, *OPTIONS) if n.startswith("filter_"))),
    "lr_schedule=steps": ("lr_step",),
    "optimizer=sgd": ("momentum",),
    "momentum!=0.0": ("momentum_place", "nesterov"),
    "engine=flower": ("nodes", "engine_options"),
}
_KIND_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table of options",
}


def checked(name: str, kind: type, value: Any, limits: Mapping[str, Any]) -> Any:
    """Check a value and convert it to the type of its setting.

    limits: as of :func:`setting`
    """
    if kind is float and type(value) is int and abs(value) < sys.float_info.max:
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


def _checked_options(table: str, given: Options, metadata: Mapping[str, Any]) -> Options:
    """The options that differ from their defaults, each checked."""
    known, found = metadata["known"], {}
    for key, value in given.items():
        if key in known:
            default = known[key]["default"]
            value = checked(str(Option(table, key, {})), type(default), value, known[key])
            if value != default:
                found[key] = value
        elif metadata["free"]:
            found[key] = value
        else:
            raise ConfigError(f"{table} has no option {key!r}; {suggest(key, known)}")
    return found


def in_tables(settings: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with each option in its table; ``tables`` holds those of before."""
    found = {name: value for name, value in settings.items() if name not in OPTIONS}
    for name in settings.keys() & OPTIONS.keys():
        table, key, _ = OPTIONS[name]
        found[table] = {**found.get(table, tables.get(table, {})), key: settings[name]}
    return found


def _accept_options(made: Callable[..., None]) -> Callable[..., None]:
    """Accept options as arguments of their own, with a warning, for one release."""

    @functools.wraps(made)
    def init(self: Config, **settings: Any) -> None:
        for name in settings.keys() & OPTIONS.keys():
            table, key, _ = OPTIONS[name]
            warnings.warn(
                f"the setting {name} is now an option: write {table}={{{key!r}: "
                f"{settings[name]!r}}}",
                DeprecationWarning,
                stacklevel=2,
            )
        made(self, **in_tables(settings, {}))

    return init


Config.__init__ = _accept_options(Config.__init__)  # type: ignore[method-assign]


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


def _check_stack(text: str) -> None:
    if text != "auto" and not (text.isdecimal() and 1 <= int(text) <= 10**6):
        raise ConfigError(f"stack is {text!r}; write a number of clients from 1 on, or auto")


def _check_plain(name: str, options: Options) -> None:
    for key, value in options.items():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(each, (str, int, float)):
                raise ConfigError(
                    f"{name} gives {key} the value {each!r}; write text in quotes, a number, "
                    "true, false, or a list of those"
                )


def _check_filter(name: str) -> None:
    """Reject unknown filters; the import is here, since it needs torch."""
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


# our settings by the names that other libraries use
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
    """The end of the error message for an unknown setting.

    >>> nearest("learning_rate")
    "did you mean 'lr'?"
    """
    known = ALIASES.get(name)
    if known:
        return f"did you mean {known!r}?"
    return suggest(name, FIELDS, "`specgrad-fl train --help` explains all settings")


def check_names(settings: Mapping[str, Any], where: str = "") -> None:
    """Reject unknown settings, naming the nearest."""
    for name, value in settings.items():
        if name in FIELDS:
            continue
        if isinstance(value, dict):
            raise ConfigError(
                f"{where}there is no table [{name}]; settings stand above all tables, and the "
                f"tables are {', '.join(TABLES)}"
            )
        raise ConfigError(f"{where}unknown setting {name!r}; {nearest(name)}")


def read_ratios(path: str | Path) -> Options:
    """Ratios by layer from a TOML file that holds the table ``filter_ratios``."""
    table = toml.read(Path(path)).get("filter_ratios")
    if not isinstance(table, dict) or not table:
        raise ConfigError(
            f"{path} has no table [filter_ratios] with a ratio for each layer; write one with "
            "`specgrad-fl diagnose`"
        )
    return flat(table)


# settings of older versions that are gone: a file may have them at the value that they had
_GONE = {"superlink": "", "tls_ca": ""}


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, with names checked; of files of older versions too."""
    settings = toml.read(path)
    for name, default in _GONE.items():
        if name in settings and settings.pop(name) != default:
            raise ConfigError(f"{path}: the setting {name} is gone; remove it")
    for name in TABLES:
        if isinstance(settings.get(name), dict):
            settings[name] = flat(settings[name])
    settings = in_tables(settings, settings)
    check_names(settings, f"{path}: ")
    return settings


def flat(table: Mapping[str, Any], prefix: str = "") -> Options:
    """``{"fedprox": {"mu": 1}}`` as ``{"fedprox.mu": 1}``."""
    dotted: Options = {}
    for key, value in table.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        dotted.update(inner)
    return dotted
