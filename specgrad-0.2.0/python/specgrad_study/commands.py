"""Commands with many runs: compare, tune, reproduce, diagnose.

What is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_fl import flags
from specgrad_fl.config import FIELDS, OPTIONS, Config, nearest
from specgrad_fl.errors import ConfigError
from specgrad_fl.flags import Commands, add_settings, settings_of

COMPARE = """Run every combination of methods, filters and seeds that has not been run yet, then
print the gain of each over its baseline and draw the curves. A filter is compared with the same
method without one, a method with the first method. Interrupted? The same command goes on where
it stopped.

example:
  specgrad-fl compare --methods fedavg,feddyn --filters none,fft --seeds 0,1,2 --rounds 50"""

TUNE = """Search a method's learning rate and own parameters without the filter, as the
paper does: a grid, widened until the best setting has no better neighbour. Samples that every
client holds out decide, a tenth unless --validation says otherwise. The result is a
configuration file for `train`, `compare` and `reproduce --tuned`, with or without the filter.

Only what is missing is run. Interrupted? The same command goes on where it stopped.

example:
  specgrad-fl tune --method fedprox --dataset cifar10 --rounds 50 --jobs 2 --out tuned/fedprox"""

REPRODUCE = """Run the paper's experiments and set its numbers beside yours.

Only what is missing is run. Interrupted? The same command goes on where it stopped.

experiments, by name or as the paper counts them (table3, figure7):
  table1, table2, near-iid, feature-shift, femnist, settings, curves,
  supplement                                                            methods compared
  strategies, layers, orders, ratio, centralised                        ablations of the filter
  spectral-bias, cka                                                    how clients drift apart
  time                                                                  seconds and memory
  mechanism, why, tuned, full-size, relatives, adaptive                 what does the work (ours)

examples:
  specgrad-fl reproduce strategies --preset cpu --dry-run      how long would it take
  specgrad-fl reproduce strategies orders --preset cpu --jobs 2
  specgrad-fl reproduce all --preset paper --shard 2/4         one of four machines
  specgrad-fl reproduce all --preset cpu --report-only         from the runs there are"""

DIAGNOSE = """Show where in the spectrum clients disagree, and which layers to filter.

Clients that pull the model in different directions make it drift. This command takes the
gradients of the clients active at chosen rounds of a run, and shows for each layer how much of
their disagreement lies in low frequencies, what a filter would remove of it, and what that would
cost of the direction they agree about (rho). It recommends a ratio for each layer, in a file that
`train --filter-ratios` takes.

examples:
  specgrad-fl diagnose runs/NAME                      at the stored weights
  specgrad-fl diagnose runs/NAME --rounds 0,10,20     along the run, played again in a copy
  specgrad-fl diagnose runs/NAME --rounds 20 --local  local models too: cosines, CKA
  specgrad-fl diagnose runs/NAME --sharpness --filters fft,centralize
  specgrad-fl diagnose --gradients client*.safetensors --weights 500,300,200
  specgrad-fl train --filter fft --filter-ratios runs/NAME/diagnosis/ratios.toml

written to --out: diagnosis.json, ratios.toml, bands.png, layers.png, filter.png, and with --local
similarity-ROUND.png. A round is a number of rounds done; 0 is the model before training."""

TRIED = "fft,lap,gaussian,random,fft_high"


def words(text: str) -> list[str]:
    """Words, each once, without the spaces around them.

    >>> words("fft, lap, fft")
    ['fft', 'lap']
    """
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def whole_numbers(text: str) -> list[int]:
    """One or more whole numbers, each once.

    >>> whole_numbers("0,10,0")
    [0, 10]
    """
    return list(dict.fromkeys(_converted(text, int, "0,1,2")))


def numbers(text: str) -> list[float]:
    """One or more numbers.

    >>> numbers("500,0.5")
    [500.0, 0.5]
    """
    return _converted(text, float, "500,300")


def _converted(text: str, convert: Callable[[str], Any], example: str) -> list[Any]:
    try:
        found = [convert(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as {example}")
    return found


def register(commands: Commands) -> None:
    """Add the commands."""
    _add_compare(commands)
    _add_tune(commands)
    _add_reproduce(commands)
    _add_diagnose(commands)


# fmt: off
def _add_compare(commands: Commands) -> None:
    parser = commands.add(
        "compare", "run methods x filters x seeds, print a table", _compare, text=COMPARE,
        usage="specgrad-fl compare [--methods A,B] [--filters A,B] [--seeds 0,1] "
        "[--SETTING VALUE ...]", goes_on=True)
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs"), help="folder of the runs [runs]")
    add("--methods", type=words, metavar="A,B", help="methods, see `specgrad-fl list` [fedavg]")
    add("--filters", type=words, default=["none", "fft"], metavar="A,B",
        help="filters, `none` for training without [none,fft]")
    add("--seeds", type=whole_numbers, default=[0], metavar="0,1",
        help="seeds; gains are paired by seed and need two or more for an interval [0]")
    add("--measure", default="last10", help="accuracy of the gains: last10, final or best [last10]")
    add("--jobs", type=int, default=1, help="runs side by side [1]")
    add("--json", action="store_true", help="rounds and the comparison as JSON lines")
    # the names that `train` has for them
    for one in ("method", "filter", "seed"):
        kind = whole_numbers if one == "seed" else words
        add(f"--{one}", dest=f"{one}s", type=kind, default=argparse.SUPPRESS,
            help=argparse.SUPPRESS)
    add("--vary", action="append", default=[], metavar="NAME=V,V",
        help="values of another setting or option, such as ratio=0.01,0.05; may be repeated")
    add_settings(parser, without=("method", "filter", "seed"))


def _add_tune(commands: Commands) -> None:
    parser = commands.add(
        "tune", "find a method's learning rate and parameters", _tune, text=TUNE,
        usage="specgrad-fl tune [--grid NAME=V,V] [--jobs N] [--SETTING VALUE ...]", goes_on=True)
    add = parser.add_argument
    add("--out", type=Path, help="folder of the result [tuned/METHOD]")
    add("--runs", type=Path, help="folder of the runs [OUT/runs]")
    add("--grid", action="append", default=[], metavar="NAME=V,V",
        help="values of lr or of an option of the method, in place of the usual ones")
    add("--seeds", type=whole_numbers, default=[0], metavar="0,1",
        help="seeds whose mean counts [0]")
    add("--limit", type=int, default=6, help="values added on each side [6]")
    add("--measure", default="last10", help="last10, final or best [last10]")
    add("--decide", default="validation", metavar="{validation,test}",
        help="what accuracy decides: on samples that clients hold out, or on the test set "
        "[validation]")
    add("--jobs", type=int, default=1, help="runs side by side [1]")
    filters = ("ratio", *(name for name in FIELDS if name.startswith("filter")))
    add_settings(parser, without=("lr", "seed", "target", *filters))


def _add_reproduce(commands: Commands) -> None:
    add = commands.add("reproduce", "the paper's tables and figures", _reproduce, text=REPRODUCE,
                       goes_on=True).add_argument
    add("names", nargs="+", metavar="NAME", help="experiments, or all")
    add("--preset", default="cpu", help="paper, cpu or smoke [cpu]")
    add("--runs", type=Path, help="folder of the runs [runs/PRESET]")
    add("--out", type=Path, help="folder of the report [RUNS/report]")
    add("--seeds", type=whole_numbers, metavar="0,1", help="seeds of every cell [by preset]")
    add("--measure", default="last10", help="last10, final or best [last10]")
    add("--tuned", type=Path, action="append", default=[], metavar="FILE",
        help="result of `tune`, reused with and without the filter; may be repeated")
    add("--with", dest="with_results", type=Path, action="append", default=[],
        metavar="RESULTS.JSON",
        help="an earlier report's results.json, for runs that the folder lacks; may be repeated")
    add("--shard", default="1/1", metavar="I/N", help="play the I-th of N parts")
    add("--jobs", type=int, default=1, help="runs side by side [1]")
    add("--workers", type=int, default=0, help="client processes of each run")
    add("--device", default="", help="torch device [by preset]")
    add("--data-root", default="", help="folder of the data sets")
    add("--dry-run", action="store_true", help="only estimate the time")
    add("--report-only", action="store_true", help="run nothing")
    add("--quiet", action="store_true", help="no progress")


def _add_diagnose(commands: Commands) -> None:
    parser = commands.add(
        "diagnose", "where in the spectrum clients disagree, and which layers to filter",
        _diagnose, text=DIAGNOSE,
        usage="specgrad-fl diagnose (RUN | --gradients FILE...) [--OPTION VALUE ...]")
    flags.add_allow(parser)
    add = parser.add_argument
    add("run", type=Path, nargs="?", help="run directory")
    add("--gradients", type=Path, nargs="+", metavar="FILE",
        help="instead of a run: safetensors files, one for each client, tensor name to gradient")
    add("--weights", type=numbers, default=[], metavar="N,N",
        help="with --gradients: weight of each client, such as its samples")
    add("--select", default="", metavar="REGEX",
        help="with --gradients: tensors to filter, by default convolutions")
    add("--rounds", type=whole_numbers, metavar="0,10",
        help="rounds to measure, by default the last one stored")
    add("--local", action="store_true",
        help="train the active clients and compare their models: cosines, CKA")
    add("--sharpness", action="store_true",
        help="measure how sharp the loss of a mini-batch is for steps through each filter; above "
        "2 / learning rate they overshoot")
    add("--source", default="full", metavar="{full,batch,update}",
        help="gradients that the table is made of: a full pass over each client's samples, one "
        "mini-batch, or the local update over its learning rates; what was measured of the others "
        "is told too [full]")
    add("--ratio", type=float, help="ratio of the filter, by default the run's")
    add("--order", help="flattening order, such as 0231, by default the run's")
    add("--filters", type=words, default=words(TRIED), metavar="A,B",
        help=f"filters to try on the gradients, or `none` [{TRIED}]")
    add("--orders", type=words, default=[], metavar="0231,random",
        help="flattening orders to try with the fft filter")
    add("--share", type=float, default=0.5,
        help="disagreement that a recommended ratio must remove [0.5]")
    add("--rho-limit", type=float, default=0.5,
        help="most of the mean gradient that all ratios may remove [0.5]")
    add("--noise-batches", type=int, default=8,
        help="mini-batches for each client's gradient noise; 0 for none [8]")
    add("--smoothness", type=float, metavar="L",
        help="smoothness of the loss, to turn the theorem's bound into a number")
    add("--out", type=Path, help="folder to write to [RUN/diagnosis, diagnosis]")
    add("--data-root", help="folder of the data sets, if it has moved")
    add("--quiet", action="store_true", help="no progress")
# fmt: on


def _compare(arguments: argparse.Namespace) -> None:
    from specgrad_study import compare
    from specgrad_study.fleet import Job, play_shown

    _check_jobs(arguments.jobs)
    compare.check_measure(arguments.measure)
    settings = settings_of(arguments)
    # a file that `tune` wrote names its method
    methods = arguments.methods or [settings.get("method", "fedavg")]
    settings.pop("method", None)
    for name, flag in (("filter", "filters"), ("seed", "seeds")):
        if name in settings:
            raise ConfigError(f"compare takes --{flag}; remove {name} from the configuration file")
    vary = dict(map(_varied, arguments.vary))
    base = Config(**settings)
    if arguments.jobs > 1:
        base = base.replace(workers=1)
    strongest = next((name for name in arguments.filters if name != "none"), "none")
    flags.warn_of_idle(base.replace(filter=strongest), {**settings, **vary})
    configs = compare.configurations(base, methods, arguments.filters, arguments.seeds, vary)
    compare.check_folder(arguments.out)
    jobs = [Job.of(config, arguments.out) for config in configs]
    outcomes = play_shown(jobs, arguments.jobs, arguments.quiet, arguments.json)
    found = compare.compare(outcomes, vary, arguments.measure)
    pictures = compare.write_report(arguments.out, found, configs[0])
    if arguments.json:
        print(json.dumps(found.report()))
        return
    print(found.text())
    print(f"pictures: {', '.join(map(str, pictures))}")
    print(found.result())


def _varied(text: str) -> tuple[str, list[Any]]:
    """``ratio=0.01,0.05`` as the setting's name and its values.

    >>> _varied("batch_size=10,20")
    ('batch_size', [10, 20])
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in (*FIELDS, *OPTIONS):
        raise ConfigError(f"--vary names the setting {name!r}; {nearest(name)}")
    if name in ("method", "filter", "seed") or isinstance(getattr(Config(), name), dict):
        raise ConfigError(f"--vary cannot change {name}; it has a flag of its own")
    found = [flags.parse_option(f"{name}={word}")[1] for word in words(values)]
    if not found:
        raise ConfigError(f"--vary is {text!r}; write a setting and its values, as ratio=0.01,0.05")
    for value in found:
        Config().replace(**{name: value})
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
