"""The command ``specgrad-fl``: train, resume, compare, diagnose, plot, list and data."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specgrad_study.diagnosis import arguments as diagnosis
from specgrad_study.paper import arguments as reproduction
from specgrad_study.tuning import arguments as tuning

from specgrad_fl.config import (
    ALIASES,
    EXECUTION_KEYS,
    FIELDS,
    SUBJECTS,
    Config,
    nearest,
    read_ratios,
    read_toml,
)
from specgrad_fl.errors import EXTRAS, ConfigError, RunError, not_installed, suggest
from specgrad_fl.flags import whole_numbers, words
from specgrad_fl.flower.commands import add_actions

if TYPE_CHECKING:
    from specgrad_fl.engine import Watcher
    from specgrad_fl.runs import RunDirectory

TOP = """Federated training with spectral gradient filtering.

first steps:
  specgrad-fl train                                  FedAvg on digits, nothing to download
  specgrad-fl train --filter fft                     the same with the filter
  specgrad-fl compare --methods fedavg,fedprox --filters none,fft --seeds 0,1,2
  specgrad-fl diagnose runs/NAME                     do clients drift, and in which layers
  specgrad-fl resume runs/NAME                       after an interruption
  specgrad-fl list                                   methods, models, data sets

Every setting can stand in a TOML file (--config FILE) under the name of its flag, with
underscores; the command line has the last word."""

TRAIN = """Run one experiment.

examples:
  specgrad-fl train --dataset cifar10 --model resnet20 --clients 100 --active 10 \\
      --method fedprox --option mu=0.01 --filter fft --rounds 300 --epochs 5
  specgrad-fl train --config experiment.toml --seed 3
  specgrad-fl train --model my_package.nets:small --method my_package.methods:Mine"""

COMPARE = """Run every combination of methods, filters and seeds that has not been run yet, then
print a table and draw the curves. Interrupted? The same command goes on where it stopped.

example:
  specgrad-fl compare --methods fedavg,feddyn --filters none,fft --seeds 0,1,2 --rounds 50"""


class Parser(argparse.ArgumentParser):
    """Refuses in one sentence; what it parsed knows the parser of the innermost command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_defaults(parser=self)

    @property
    def flags(self) -> list[str]:
        """Every ``--flag``."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def _parser() -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("specgrad-fl", description=TOP, formatter_class=raw, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, text: str = "", usage: str | None = None) -> Parser:
        return commands.add_parser(
            name, help=summary, description=text or summary, usage=usage, formatter_class=raw,
            allow_abbrev=False,
        )  # fmt: skip

    train = command("train", "run one experiment", TRAIN, "specgrad-fl train [--SETTING VALUE ...]")
    train.add_argument("--out", type=Path, help="run directory, new or empty [runs/NAME]")
    _add_json(train)
    _add_settings(train)

    resume = command("resume", "continue an interrupted run, to the bit, or make it longer")
    resume.add_argument("run", type=Path, help="run directory")
    _add_json(resume)
    _add_settings(resume, only=EXECUTION_KEYS | {"rounds"})

    compare = command(
        "compare",
        "run methods x filters x seeds, print a table",
        COMPARE,
        "specgrad-fl compare [--methods A,B] [--filters A,B] [--seeds 0,1] [--SETTING VALUE ...]",
    )
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
    _add_settings(compare, without=("method", "filter", "seed"))

    tune = command(
        "tune", "find a method's learning rate and parameters", tuning.DESCRIPTION,
        "specgrad-fl tune [--grid NAME=V,V] [--jobs N] [--SETTING VALUE ...]",
    )  # fmt: skip
    tuning.add_arguments(tune)
    _add_settings(tune, without=("lr", "filter", "seed"))

    reproduce = command("reproduce", "the paper's tables and figures", reproduction.DESCRIPTION)
    reproduction.add_arguments(reproduce)

    diagnose = command(
        "diagnose", "where in the spectrum clients disagree, and which layers to filter",
        diagnosis.HELP, "specgrad-fl diagnose (RUN | --gradients FILE...) [--OPTION VALUE ...]",
    )  # fmt: skip
    diagnosis.add_arguments(diagnose)

    plot = command("plot", "draw the curves of runs into one picture")
    plot.add_argument("runs", type=Path, nargs="+", help="run directories")
    plot.add_argument("--out", type=Path, default=Path("curves.png"), help="picture to write")

    listing = command("list", "methods, models and data sets; or the runs in a folder")
    listing.add_argument("folder", type=Path, nargs="?", help="folder of runs")

    datasets = command("data", "data sets: list, fetch")
    actions = datasets.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="every data set, and whether it is here")
    fetch = actions.add_parser("fetch", help="download a data set, verified, resumable")
    fetch.add_argument("name", help="data set, see `specgrad-fl data list`")
    for parts in (actions.choices["list"], fetch):
        parts.add_argument("--data-root", type=Path, help="folder of the data sets")

    flower = command("flower", "the machines of a federation: keys, shards, superlink, node")
    add_actions(flower, _add_settings)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="rounds and results as JSON lines on standard output"
    )


def _add_settings(
    parser: argparse.ArgumentParser,
    only: frozenset[str] = frozenset(),
    without: tuple[str, ...] = (),
) -> None:
    """Flags for the settings; what is not given stays absent, so that the file can speak."""
    parser.add_argument("--quiet", action="store_true", help="no progress")
    if not only:
        parser.add_argument("--config", type=Path, help="TOML file with settings")
    group: Any = None
    for name, item in FIELDS.items():
        if name in SUBJECTS:
            group = parser.add_argument_group(SUBJECTS[name])
        if name in without or (only and name not in only):
            continue
        flag = "--" + name.replace("_", "-")
        text = item.metadata["help"].replace("%", "%%")
        common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
        if name.endswith("options"):
            flag = flag.removesuffix("s")
            group.add_argument(flag, action="append", metavar="KEY=VALUE", help=text, **common)
            continue
        if name == "filter_ratios":
            group.add_argument(flag, type=read_ratios, metavar="FILE", help=text, **common)
            continue
        # what is not given to a run that exists stays as it is there
        shown = item.default if item.default != "" and not only else None
        common["help"] = text if shown is None else f"{text} [{shown}]"
        if isinstance(item.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            kind = type(item.default)
            choices = item.metadata["choices"]
            meta = "{" + ",".join(choices) + "}" if choices else kind.__name__.upper()
            group.add_argument(flag, type=kind, metavar=meta, **common)


def parse_option(text: str) -> tuple[str, Any]:
    """``key=value`` with a number, true, false or text.

    >>> parse_option("mu=0.01"), parse_option("slot_parity=true"), parse_option("stem=cifar")
    (('mu', 0.01), ('slot_parity', True), ('stem', 'cifar'))
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"an option is written key=value; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """File, then command line."""
    path = getattr(arguments, "config", None)
    settings = read_toml(path) if path else {}
    for name in FIELDS:
        if name in arguments:
            value = getattr(arguments, name)
            if name.endswith("options"):
                in_file = settings.get(name, {})
                if not isinstance(in_file, dict):
                    raise ConfigError(f"{name} is {in_file!r} in {path}; write a table [{name}]")
                value = {**in_file, **dict(map(parse_option, value))}
            settings[name] = value
    return settings


def _warn_of_idle(config: Config, settings: Iterable[str]) -> None:
    """Name the settings that were given and change nothing."""
    for name, needs in config.without_effect(settings).items():
        print(f"specgrad-fl: {name} has no effect without {needs}", file=sys.stderr)


def _train(arguments: argparse.Namespace) -> None:
    from specgrad_fl import training
    from specgrad_fl.runs import run_name

    settings = _settings(arguments)
    config = Config(**settings)
    _warn_of_idle(config, settings)
    out = arguments.out = arguments.out or Path("runs") / run_name(config)
    _report(arguments, training.train(config, out, _watcher(arguments), _announcer(arguments)))


def _resume(arguments: argparse.Namespace) -> None:
    from specgrad_fl import training

    run = training.resume(arguments.run, _watcher(arguments), _settings(arguments))
    _report(arguments, run)


def _watcher(arguments: argparse.Namespace, label: str = "") -> Watcher:
    from specgrad_fl import progress
    from specgrad_fl.engine import silent

    return progress.watcher(arguments.quiet, label, getattr(arguments, "json", False)) or silent


def _announcer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Says on standard error what is happening."""

    def say(sentence: str) -> None:
        if not (arguments.quiet or arguments.json):
            print(sentence, file=sys.stderr, flush=True)

    return say


def _report(arguments: argparse.Namespace, run: RunDirectory) -> None:
    """The results: a table for people, or one JSON object."""
    from specgrad_fl.results import shown

    summary = run.summary()
    if arguments.json:
        print(json.dumps({"run": str(run.path), **summary}))
        return
    pictures = sorted(path.name for path in run.path.glob("*.png"))
    _print_table([shown(summary)])
    print(f"run: {run.path}  pictures: {', '.join(pictures)}")


def _print_table(rows: Sequence[dict[str, str]]) -> None:
    """A table that does not wrap on a terminal."""
    from specgrad_fl.progress import columns
    from specgrad_fl.results import fitted

    print(fitted(rows, columns(sys.stdout) if sys.stdout.isatty() else sys.maxsize))


def _compare(arguments: argparse.Namespace) -> None:
    from specgrad_study.compare import compare

    settings = _settings(arguments)
    # a file that `tune` wrote names its method
    methods = arguments.methods or [settings.get("method", "fedavg")]
    settings.pop("method", None)
    for name, flag in (("filter", "filters"), ("seed", "seeds")):
        if name in settings:
            raise ConfigError(f"compare takes --{flag}; remove {name} from the configuration file")
    vary = dict(map(_varied, arguments.vary))
    base = Config(**settings)
    strongest = next((name for name in arguments.filters if name != "none"), "none")
    _warn_of_idle(base.replace(filter=strongest), {**settings, **vary})
    pictures, rows = compare(
        base,
        methods,
        arguments.filters,
        arguments.seeds,
        arguments.out,
        lambda label: _watcher(arguments, label),
        vary,
    )
    _print_table(rows)
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
    command.run(arguments, _settings(arguments))


def _reproduce(arguments: argparse.Namespace) -> None:
    from specgrad_study.paper import command

    _check_jobs(arguments.jobs)
    command.run(arguments)


def _diagnose(arguments: argparse.Namespace) -> None:
    from specgrad_study.diagnosis import command

    command.run(arguments)


def _plot(arguments: argparse.Namespace) -> None:
    from specgrad_fl import plots
    from specgrad_fl.runs import RunDirectory

    plots.check_free(arguments.out)
    names = [path.resolve().name for path in arguments.runs]
    found = {}
    for path, name in zip(arguments.runs, names, strict=True):
        run = RunDirectory(path)
        run.config()
        records = run.records()
        if not records:
            raise RunError(f"{path} has no finished round to draw yet")
        found[str(path) if names.count(name) > 1 else name] = records
    plots.curves(arguments.out, found)
    print(arguments.out)


def _list(arguments: argparse.Namespace) -> None:
    if arguments.folder is not None:
        _list_runs(arguments.folder)
        return
    import specgrad_data

    from specgrad_fl.methods import METHODS
    from specgrad_fl.models import MODELS
    from specgrad_fl.partition import KINDS
    from specgrad_kernels.spec import METHODS as FILTERS

    print("methods, with their options:")
    for name, kind in METHODS.items():
        options = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(kind.Options))
        print(f"  {name:10} {options}")
    print("models:     " + ", ".join(MODELS) + ", or module:factory")
    print("filters:    none, " + ", ".join(FILTERS) + ", or two of them as a+b or a-b")
    print("partitions: " + ", ".join(KINDS))
    print("data sets:  " + ", ".join(entry.name for entry in specgrad_data.catalog()))
    print("your own data, as --dataset:")
    for name, what in specgrad_data.OWN.items():
        print(f"  {name:15} {what}")


def _list_runs(folder: Path) -> None:
    from specgrad_fl.runs import RunDirectory

    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    runs = [RunDirectory(path.parent) for path in sorted(folder.glob("*/config.toml"))]
    for run in runs:
        rounds = run.config().rounds
        records = run.records()
        key = "validation_accuracy" if run.config().validation else "test_accuracy"
        scores = [r[key] for r in records if key in r]
        best = f"best {max(scores):.1%}" if scores else "not evaluated yet"
        status = "finished" if run.finished else f"round {len(records)}/{rounds}"
        print(f"{run.path.name}  {status}  {best}")
    if not runs:
        print(f"no runs in {folder}")


def _data(arguments: argparse.Namespace) -> None:
    import specgrad_data
    from specgrad_data import fetch

    root = arguments.data_root or specgrad_data.default_root()
    if arguments.action == "fetch":
        known = {entry.name: entry for entry in specgrad_data.catalog()}.get(arguments.name)
        there = known is not None and fetch.is_complete(known, root)
        folder = fetch.fetch(arguments.name, root, fetch_progress())
        print(f"{folder} was complete already" if there else folder)
        return
    for entry in specgrad_data.catalog():
        here = "here" if fetch.is_here(entry, root) else ""
        print(f"{entry.name:16} {here:5} {entry.what}")


def fetch_progress() -> Callable[[int, int], None] | None:
    """Shows bytes so far and in all on a terminal; silent elsewhere."""
    from specgrad_fl.progress import rewrite

    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        share = f" of {total / 1e6:.1f} MB ({done / total:.0%})" if total else " MB"
        rewrite(sys.stderr, f"{done / 1e6:.1f}{share}", end="\n" if done == total else "")

    return show


def _flower(arguments: argparse.Namespace) -> None:
    from specgrad_fl.flower import commands

    commands.run(arguments, lambda: _settings(arguments))


COMMANDS = {
    "train": _train,
    "resume": _resume,
    "compare": _compare,
    "tune": _tune,
    "reproduce": _reproduce,
    "diagnose": _diagnose,
    "plot": _plot,
    "list": _list,
    "data": _data,
    "flower": _flower,
}


def _how_to_go_on(arguments: argparse.Namespace) -> str:
    """What an interrupted command left, and how to take it up."""
    if arguments.command in ("resume", "compare", "tune", "reproduce"):
        return "; the same command goes on from the last finished round"
    if arguments.command != "train":
        return ""
    if arguments.out is not None and (arguments.out / "config.toml").is_file():
        return f"; `specgrad-fl resume {arguments.out}` continues"
    return " before the run began; nothing was written"


def _check_installed(command: str) -> None:
    """Refuse before the first round what would fail after the last, when pictures are drawn."""
    for package in () if command in ("list", "data", "flower") else ("safetensors", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise not_installed(package)


def _check_environment() -> None:
    """The op refuses a SPECGRAD_BACKEND or SPECGRAD_ISA that names nothing when it is imported."""
    try:
        importlib.import_module("specgrad_kernels")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_unknown(unknown: list[str], parser: Parser) -> None:
    for word in unknown:
        flag = word.partition("=")[0]
        hint = f"see {parser.prog} --help"
        if flag.lstrip("-").replace("-", "_") in FIELDS:
            hint = f"{parser.prog} does not take this setting (see its --help)"
        elif flag.lstrip("-").replace("-", "_") in ALIASES:
            hint = f"did you mean '--{ALIASES[flag.lstrip('-').replace('-', '_')]}'?"
        elif flag.startswith("--"):
            hint = suggest(flag, parser.flags)
        raise ConfigError(f"unknown argument {word!r}; {hint}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what a user can set right is one sentence and exit code 2."""
    arguments = argparse.Namespace(command="")
    try:
        _, unknown = _parser().parse_known_args(argv, arguments)
        _check_unknown(unknown, arguments.parser)
        _check_installed(arguments.command)
        _check_environment()
        COMMANDS[arguments.command](arguments)
    except RunError as error:
        return _refuse(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _refuse(not_installed(package))
    except KeyboardInterrupt:
        print(f"\nspecgrad-fl: interrupted{_how_to_go_on(arguments)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
    return 0


def _refuse(error: RunError) -> int:
    print(f"specgrad-fl: {error}", file=sys.stderr)
    if error.trace:
        print(error.trace, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
