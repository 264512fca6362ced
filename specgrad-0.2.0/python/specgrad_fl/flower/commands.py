"""``specgrad-fl flower``: what a federation of stock Flower processes needs from here."""

from __future__ import annotations

import argparse
from pathlib import Path

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.flags import Commands, add_settings, settings_of


def register(commands: Commands) -> None:
    """Add ``specgrad-fl flower``."""
    parser = commands.add("flower", "what a Flower federation needs: app, shards, keys", run)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    for name, about in (
        ("app", "an experiment as a folder that `flwr run` takes"),
        ("shards", "each client's samples in an experiment, one folder for each node"),
    ):
        usage = f"specgrad-fl flower {name} [--out FOLDER] [--config FILE] [--SETTING VALUE ...]"
        action = actions.add_parser(name, help=about, usage=usage)
        action.add_argument("--out", type=Path, default=Path(name), help=f"new folder [{name}]")
        add_settings(action)

    keys = actions.add_parser("keys", help="certificates and node keys, once for a federation")
    keys.add_argument("--out", type=Path, default=Path("keys"), help="new folder [keys]")
    keys.add_argument("--host", action="append", required=True, help="of the SuperLink; repeat it")
    keys.add_argument("--nodes", type=int, default=3, help="how many node keys [3]")


def run(arguments: argparse.Namespace) -> None:
    """Do one action."""
    from specgrad_fl.flower.app import check_installed

    check_installed()
    if arguments.action == "keys":
        _keys(arguments)
    else:
        write = {"app": _app, "shards": _shards}[arguments.action]
        write(arguments.out, Config(**settings_of(arguments)))


def _app(out: Path, config: Config) -> None:
    from specgrad_fl import prepare
    from specgrad_fl.flower import app

    prepare.prepare(config)  # refuses here what a server would refuse later
    app.write(out, config)
    print(f"{out}: start it with `flwr run {out} FEDERATION`")


def _shards(out: Path, config: Config) -> None:
    from specgrad_fl import prepare
    from specgrad_fl.flower.place import write_shards

    folders = [out / f"node-{number}" for number in range(config.nodes)]
    for folder in folders:
        if folder.exists():
            raise RunError(f"{folder} exists; choose another --out, or remove it")
    dataset = prepare.load_data(config)
    clients = prepare.divide(config, dataset).clients
    if config.nodes > len(clients):
        raise ConfigError(
            f"nodes is {config.nodes}, and there are {len(clients)} clients; choose at most as many"
        )
    write_shards(config, dataset, clients, folders)
    print(f"{out}: copy node-K to machine K, and nothing else of the data")


def _keys(arguments: argparse.Namespace) -> None:
    from specgrad_fl.flower import keys

    if arguments.nodes < 1:
        raise ConfigError(f"nodes is {arguments.nodes}; the least is 1")
    keys.make(arguments.out, arguments.host, [f"node-{k}" for k in range(arguments.nodes)])
    print(f"{arguments.out}: ca.crt for all, superlink.* for the SuperLink, node-K for node K")
