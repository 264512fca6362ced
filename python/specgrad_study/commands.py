"""The commands that ask questions with many runs: compare, tune, reproduce, diagnose."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specgrad_fl.config import FIELDS, Config, nearest
from specgrad_fl.errors import ConfigError
from specgrad_fl.flags import (
    Commands,
    add_settings,
    parse_option,
    print_table,
    settings_of,
    warn_of_idle,
    watcher_of,
)

from specgrad_study.diagnosis import arguments as diagnosis
from specgrad_study.lists import whole_numbers, words
from specgrad_study.paper import arguments as reproduction
from specgrad_study.tuning import arguments as tuning

COMPARE = """Run every combination of methods, filters and seeds that has not been run yet, then
print a table and draw the curves. Interrupted? The same command goes on where it stopped.

example:
  specgrad-fl compare --methods fedavg,feddyn --filters none,fft --seeds 0,1,2 --rounds 50"""


def register(commands: Commands) -> None:
    """Add the commands."""
    compare = commands.add(
        "compare", "run methods x filters x seeds, print a table", _compare, text=COMPARE,
        usage="specgrad-fl compare [--methods A,B] [--filters A,B] [--seeds 0,1] "
        "[--SETTING VALUE ...]", goes_on=True,
    )  # fmt: skip
    compare.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs [runs]")
    compare.add_argument(
        "--methods", type=words, metavar="A,B", help="methods, see `specgrad-fl list` [fedavg]"
    )
    compare.add_argument(
        "--filters", type=words, default=["none", "fft"], metavar="A,B",
        help="filters, `none` for training without [none,fft]",
    )  # fmt: skip
    compare.add_argument(
        "--seeds", type=whole_numbers, default=[0], metavar="0,1",
        help="seeds; the table shows mean and deviation over them [0]",
    )  # fmt: skip
    compare.add_argument(
        "--vary", action="append", default=[], metavar="NAME=V,V",
        help="values of any other setting, such as ratio=0.01,0.05; repeat it for several",
    )  # fmt: skip
    add_settings(compare, without=("method", "filter", "seed"))

    tune = commands.add(
        "tune", "find a method's learning rate and parameters", _tune, text=tuning.DESCRIPTION,
        usage="specgrad-fl tune [--grid NAME=V,V] [--jobs N] [--SETTING VALUE ...]", goes_on=True,
    )  # fmt: skip
    tuning.add_arguments(tune)
    add_settings(tune, without=("lr", "filter", "seed"))

    reproduce = commands.add(
        "reproduce", "the paper's tables and figures", _reproduce, text=reproduction.DESCRIPTION,
        goes_on=True,
    )  # fmt: skip
    reproduction.add_arguments(reproduce)

    diagnose = commands.add(
        "diagnose", "where in the spectrum clients disagree, and which layers to filter",
        _diagnose, text=diagnosis.HELP,
        usage="specgrad-fl diagnose (RUN | --gradients FILE...) [--OPTION VALUE ...]",
    )  # fmt: skip
    diagnosis.add_arguments(diagnose)


def _compare(arguments: argparse.Namespace) -> None:
    from specgrad_study.compare import compare

    settings = settings_of(arguments)
    # a file that `tune` wrote names its method
    methods = arguments.methods or [settings.get("method", "fedavg")]
    settings.pop("method", None)
    for name, flag in (("filter", "filters"), ("seed", "seeds")):
        if name in settings:
            raise ConfigError(f"compare takes --{flag}; remove {name} from the configuration file")
    vary = dict(map(_varied, arguments.vary))
    base = Config(**settings)
    strongest = next((name for name in arguments.filters if name != "none"), "none")
    warn_of_idle(base.replace(filter=strongest), {**settings, **vary})
    pictures, rows = compare(
        base,
        methods,
        arguments.filters,
        arguments.seeds,
        arguments.out,
        lambda label: watcher_of(arguments, label),
        vary,
    )
    print_table(rows)
    print(f"pictures: {', '.join(map(str, pictures))}")


def _varied(text: str) -> tuple[str, list[Any]]:
    """``ratio=0.01,0.05`` as the setting's name and its values.

    >>> _varied("batch_size=10,20")
    ('batch_size', [10, 20])
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in FIELDS:
        raise ConfigError(f"--vary names the setting {name!r}; {nearest(name)}")
    if name in ("method", "filter", "seed") or isinstance(getattr(Config(), name), dict):
        raise ConfigError(f"--vary cannot change {name}; it has a flag of its own")
    found = [parse_option(f"{name}={word}")[1] for word in words(values)]
    if not found:
        raise ConfigError(f"--vary is {text!r}; write a setting and its values, as ratio=0.01,0.05")
    for value in found:
        Config(**{name: value})
    return name, found


def _check_jobs(jobs: int) -> None:
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; the least is 1")


def _tune(arguments: argparse.Namespace) -> None:
    from specgrad_study.tuning import command

    _check_jobs(arguments.jobs)
    command.run(arguments, settings_of(arguments))


def _reproduce(arguments: argparse.Namespace) -> None:
    from specgrad_study.paper import command

    _check_jobs(arguments.jobs)
    command.run(arguments)


def _diagnose(arguments: argparse.Namespace) -> None:
    from specgrad_study.diagnosis import command

    command.run(arguments)
