"""Commands and their flags: one for each setting, options as ``key=value``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specgrad_fl.config import (
    CODE_KEYS,
    FIELDS,
    OPTIONS,
    SUBJECTS,
    Config,
    in_tables,
    read_ratios,
    read_toml,
)
from specgrad_fl.errors import ConfigError, suggest

if TYPE_CHECKING:
    from specgrad_fl.progress import Watcher


class Parser(argparse.ArgumentParser):
    """Raises user errors; parsed arguments hold the parser of the innermost command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_defaults(parser=self)

    @property
    def flags(self) -> list[str]:
        """Every ``--flag`` that the help explains."""
        actions = self._option_string_actions.items()
        return [flag for flag, action in actions
                if flag.startswith("--") and action.help != argparse.SUPPRESS]  # fmt: skip

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest command where argparse would list them all."""
        if action.choices is not None and value not in action.choices:
            what = "command" if action.dest == "command" else action.dest
            raise ConfigError(f"there is no {what} {value!r}; {suggest(value, action.choices)}")


class Commands:
    """The commands of a program, each with the function that does it."""

    def __init__(self, parser: Parser) -> None:
        self._added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        self,
        name: str,
        summary: str,
        do: Callable[[argparse.Namespace], None],
        *,
        text: str = "",
        usage: str | None = None,
        goes_on: bool = False,
    ) -> Parser:
        """The parser of a new command.

        text, usage: what its ``--help`` begins with
        goes_on: whether the same command continues what was interrupted
        """
        raw = argparse.RawDescriptionHelpFormatter
        parser = self._added.add_parser(
            name, help=summary, description=text or summary, usage=usage, formatter_class=raw,
            allow_abbrev=False,
        )  # fmt: skip
        parser.set_defaults(do=do, goes_on=goes_on)
        return parser


def add_allow(parser: argparse.ArgumentParser) -> None:
    """Add the flag that lets a stored configuration run your own code."""
    text = "let a stored run or --config file run this code of your own; repeat it for more names"
    parser.add_argument("--allow", action="append", default=[], metavar="MODULE:NAME", help=text)


def add_settings(
    parser: argparse.ArgumentParser,
    only: frozenset[str] = frozenset(),
    without: tuple[str, ...] = (),
) -> None:
    """Add flags for the settings; those not given stay absent, so that the file decides."""
    parser.add_argument("--quiet", action="store_true", help="no progress")
    if not only:
        parser.add_argument("--config", type=Path, help="TOML file with settings")
    add_allow(parser)
    group: Any = None
    for name, item in FIELDS.items():
        if name in SUBJECTS:
            group = parser.add_argument_group(SUBJECTS[name])
        if name in without or (only and name not in only):
            continue
        flag, default = "--" + name.replace("_", "-"), item.metadata["default"]
        text = item.metadata["help"].replace("%", "%%")
        how: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        # what is not given to a run that exists stays as it is there
        if default not in ("", {}) and not only:
            how["help"] += f" [{default}]"
        if name.endswith("options"):
            flag = flag.removesuffix("s")
            how |= {"action": "append", "metavar": "KEY=VALUE"}
            how["help"] += "".join(map(_explained, item.metadata.get("known", {}).items()))
        elif name == "filter_ratios":
            how |= {"type": read_ratios, "metavar": "FILE"}
        elif isinstance(default, bool):
            how["action"] = argparse.BooleanOptionalAction
        else:
            choices, kind = item.metadata["choices"], type(default)
            meta = "{" + ",".join(choices) + "}" if choices else kind.__name__.upper()
            how |= {"type": kind, "metavar": meta}
        group.add_argument(flag, **how)
        for old, option in OPTIONS.items():
            if option.table == name:
                kind = type(option.limits["default"])
                how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
                hidden = {"dest": old, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                group.add_argument("--" + old.replace("_", "-"), **how, **hidden)


def _explained(option: tuple[str, Mapping[str, Any]]) -> str:
    """An option in the help of its table."""
    key, about = option
    default = about["default"]
    value = "|".join(about["choices"]) or (str(default).lower() if default != "" else "TEXT")
    return f"; {key}={value}: {about['help']}".replace("%", "%%")


def parse_option(text: str) -> tuple[str, Any]:
    """``key=value`` with a number, true, false or text.

    >>> parse_option("mu=0.01"), parse_option("slot_parity=true"), parse_option("stem=cifar")
    (('mu', 0.01), ('slot_parity', True), ('stem', 'cifar'))
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"an option is written key=value, such as mu=0.01; got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings of the file, overridden by the command line."""
    path = getattr(arguments, "config", None)
    settings = read_toml(path) if path else {}
    _check_code(path, settings, arguments)
    for name in FIELDS:
        if name in arguments:
            value = getattr(arguments, name)
            if name.endswith("options"):
                in_file = settings.get(name, {})
                if not isinstance(in_file, dict):
                    raise ConfigError(f"{name} is {in_file!r} in {path}; write a table [{name}]")
                value = {**in_file, **dict(map(parse_option, value))}
                texts = dict(word.partition("=")[::2] for word in getattr(arguments, name))
                for key, about in FIELDS[name].metadata.get("known", {}).items():
                    if key in texts and isinstance(about["default"], str):
                        value[key] = texts[key]  # such as the order 1023
            settings[name] = value
    for name, option in OPTIONS.items():
        if name in arguments:
            value = getattr(arguments, name)
            flag = f"--{name.replace('_', '-')}"
            print(f"specgrad-fl: {flag} is now {option}={value}", file=sys.stderr)
            settings = in_tables({**settings, name: value}, settings)
    return settings


def _check_code(path: Path | None, settings: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Refuse code that only a file names, unless it lies beside the file."""
    from specgrad_fl.own_code import beside, check_allowed

    named = {n: v for n, v in settings.items() if n in CODE_KEYS and n not in arguments}
    if path and named:
        values = [value for value in named.values() if isinstance(value, str)]
        near = [value for value in values if ":" in value and beside(path, value)]
        check_allowed(named, [*arguments.allow, *near], str(path))


def warn_of_idle(config: Config, settings: Iterable[str]) -> None:
    """Warn about given settings without effect."""
    for name, needs in config.without_effect(settings).items():
        name = str(OPTIONS.get(name, name))
        print(f"specgrad-fl: {name} has no effect without {needs}", file=sys.stderr)


def watcher_of(arguments: argparse.Namespace, label: str = "") -> Watcher:
    """The watcher that the flags ask for."""
    from specgrad_fl import progress  # imports torch

    return progress.watcher(arguments.quiet, label, getattr(arguments, "json", False))
