"""The command ``specgrad-fl``: train, resume, compare, diagnose, plot, list and data."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import importlib
import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgrad_fl.config import ALIASES, EXECUTION_KEYS, FIELDS, OPTIONS, Config
from specgrad_fl.errors import (
    EXTRAS,
    ConfigError,
    RunError,
    UserError,
    not_installed,
    printable,
    suggest,
    version,
)
from specgrad_fl.extensions import COMMANDS, registered
from specgrad_fl.flags import (
    Commands,
    Parser,
    add_settings,
    settings_of,
    warn_of_idle,
    watcher_of,
)

if TYPE_CHECKING:
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


def _parser() -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("specgrad-fl", description=TOP, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"specgrad {version('specgrad')}")
    commands = Commands(parser)

    usage = "specgrad-fl train [--SETTING VALUE ...]"
    train = commands.add("train", "run one experiment", _train, text=TRAIN, usage=usage)
    train.add_argument("--out", type=Path, help="run directory, new or empty [runs/NAME]")

    summary = "continue an interrupted run, to the bit, or make it longer"
    resume = commands.add("resume", summary, _resume, goes_on=True)
    resume.add_argument("run", type=Path, help="run directory")
    for each in (train, resume):
        text = "rounds and results as JSON lines on standard output"
        each.add_argument("--json", action="store_true", help=text)
    add_settings(train)
    add_settings(resume, only=EXECUTION_KEYS | {"rounds"})

    plot = commands.add("plot", "draw the curves of runs into one picture", _plot)
    plot.add_argument("runs", type=Path, nargs="+", help="run directories")
    plot.add_argument("--out", type=Path, default=Path("curves.png"), help="picture to write")

    listing = commands.add("list", "methods, models and data sets; or the runs in a folder", _list)
    listing.add_argument("folder", type=Path, nargs="?", help="folder of runs")

    datasets = commands.add("data", "data sets: list, fetch", _data)
    actions = datasets.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="every data set, and whether it is here")
    fetch = actions.add_parser("fetch", help="download a data set, verified, resumable")
    fetch.add_argument("name", help="data set, see `specgrad-fl data list`")
    for parts in (actions.choices["list"], fetch):
        parts.add_argument("--data-root", type=Path, help="folder of the data sets")

    for _, entry in sorted(registered(COMMANDS).items()):
        entry.load()(commands)
    return parser


def _train(arguments: argparse.Namespace) -> None:
    from specgrad_fl import training
    from specgrad_fl.runs import run_name

    settings = settings_of(arguments)
    config = Config(**settings)
    warn_of_idle(config, settings)
    out = arguments.out = arguments.out or Path("runs") / run_name(config)
    silent = arguments.quiet or arguments.json
    say = (lambda sentence: None) if silent else partial(print, file=sys.stderr, flush=True)
    _report(arguments, training.train(config, out, watcher_of(arguments), say))


def _resume(arguments: argparse.Namespace) -> None:
    from specgrad_fl import training

    settings = settings_of(arguments)
    run = training.resume(arguments.run, watcher_of(arguments), settings, arguments.allow)
    _report(arguments, run)


def _report(arguments: argparse.Namespace, run: RunDirectory) -> None:
    """The results: a table for people, or one JSON object."""
    from specgrad_fl.progress import columns
    from specgrad_fl.results import fitted, shown

    summary = run.summary()
    if arguments.json:
        print(json.dumps({"run": str(run.path), **summary}))
        return
    pictures = sorted(path.name for path in run.path.glob("*.png"))
    print(fitted(shown(summary), columns(sys.stdout) if sys.stdout.isatty() else sys.maxsize))
    print(f"run: {run.path}  pictures: {', '.join(pictures)}")
    best, chosen = summary["best_accuracy"], summary.get("chosen_on", "test")
    print(
        f"accuracy {summary['final_accuracy']:.1%} after round {summary['rounds']}, best "
        f"{best:.1%} in round {summary['best_round']} (chosen on {chosen} samples)"
    )


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
    unread = 0
    for run in runs:
        try:
            told = _progress_of(run)
        except (RunError, OSError) as error:
            unread += 1
            told = f"cannot be read: {printable(error, sys.maxsize)}"
        print(f"{printable(run.path.name)}  {told}")
    if not runs:
        print(f"no runs in {folder}")
    if unread:
        raise RunError(f"{unread} of {len(runs)} runs in {folder} cannot be read")


def _progress_of(run: RunDirectory) -> str:
    """Say where a run stands, and its best accuracy."""
    config, records = run.config(), run.records()
    key = "validation_accuracy" if config.validation else "test_accuracy"
    scores = [r[key] for r in records if key in r]
    best = f"best {max(scores):.1%}" if scores else "not evaluated yet"
    status = "finished" if run.finished else f"round {len(records)}/{config.rounds}"
    return f"{status}  {best}"


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
    """Progress of a download on a terminal; ``None`` elsewhere."""
    from specgrad_fl.progress import rewrite

    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        share = f" of {total / 1e6:.1f} MB ({done / total:.0%})" if total else " MB"
        rewrite(sys.stderr, f"{done / 1e6:.1f}{share}", end="\n" if done == total else "")

    return show


def _how_to_go_on(arguments: argparse.Namespace) -> str:
    """The end of the message of an interrupted command: the way to continue."""
    if getattr(arguments, "goes_on", False):
        return "; the same command goes on from the last finished round"
    if arguments.command != "train":
        return ""
    if arguments.out is not None and (arguments.out / "config.toml").is_file():
        return f"; `specgrad-fl resume {arguments.out}` continues"
    return " before the run began; nothing was written"


def _check_installed(command: str) -> None:
    """Check optional packages before the first round, not when pictures are drawn."""
    for package in () if command in ("list", "data", "flower") else ("safetensors", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise not_installed(package)


def _check_environment() -> None:
    """Import the op, which rejects an unknown SPECGRAD_BACKEND or SPECGRAD_ISA."""
    try:
        importlib.import_module("specgrad_kernels")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_unknown(unknown: list[str], parser: Parser) -> None:
    """Reject unknown arguments, with a hint."""
    if unknown:
        flag, _, value = unknown[0].partition("=")
        value = value or next((word for word in unknown[1:] if not word.startswith("--")), "VALUE")
        raise ConfigError(f"unknown argument {unknown[0]!r}; {_meant(flag, value, parser)}")


def _meant(flag: str, value: str, parser: Parser) -> str:
    name = flag.lstrip("-").replace("-", "_")
    if name in FIELDS or name in OPTIONS:
        return f"{parser.prog} does not take this setting (see its --help)"
    if name in ALIASES:
        return f"did you mean '--{ALIASES[name]}'?"
    if "--option" in parser.flags:
        from specgrad_fl.filters import FREE, OF_ALL
        from specgrad_fl.methods import METHODS

        owners = [method for method, kind in METHODS.items() if hasattr(kind.Options, name)]
        if owners:
            return f"it is an option of {', '.join(owners)}: write --option {name}={value}"
        if name in FREE + OF_ALL:
            return f"it is an option of the filter: write --filter-option {name}={value}"
    otherwise = f"see {parser.prog} --help"
    if not flag.startswith("--"):
        return otherwise
    hint = suggest(flag[2:], [known[2:] for known in parser.flags], otherwise)
    return hint.replace("mean '", "mean '--")


def _say(sentence: Warning | str, *_: Any) -> None:
    """One line on standard error; also in the place of ``warnings.showwarning``."""
    # names of a stranger's files may hold what a terminal obeys
    lines = (printable(line, sys.maxsize) for line in str(sentence).split("\n"))
    print("specgrad-fl: " + "\n".join(lines), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; user errors are one line and exit code 2."""
    arguments = argparse.Namespace(command="")
    with warnings.catch_warnings():
        warnings.showwarning = _say  # type: ignore[assignment]
        # which tells while it is imported of its font cache and of folders without rights
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        return _run(argv, arguments)


def _run(argv: Sequence[str] | None, arguments: argparse.Namespace) -> int:
    try:
        _, unknown = _parser().parse_known_args(argv, arguments)
        _check_unknown(unknown, arguments.parser)
        _check_installed(arguments.command)
        _check_environment()
        arguments.do(arguments)
    except UserError as error:
        return _refuse(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("fcntl", "resource"):
            sentence = (
                f"the trainer needs Linux or macOS, and this is {sys.platform}; run it in WSL"
            )
            return _refuse(RunError(f"{sentence} (the op, specgrad_kernels, runs here)"))
        if package not in EXTRAS:
            raise
        return _refuse(not_installed(package))
    except KeyboardInterrupt:
        print(f"\nspecgrad-fl: interrupted{_how_to_go_on(arguments)}", file=sys.stderr)
        return 130
    except PermissionError as error:
        return _refuse(RunError(f"cannot use {error.filename}: {error.strerror}"))
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refuse(RunError("a name is too long for this file system; choose a shorter one"))
    return 0


def _refuse(error: UserError) -> int:
    _say(str(error))
    if error.trace:
        print(error.trace, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
