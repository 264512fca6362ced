"""``specgrad-fl flower``: what machines of a federation run, and what they need."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.flags import Commands, add_settings, settings_of


def add_actions(
    parser: argparse.ArgumentParser, add_settings: Callable[[argparse.ArgumentParser], None]
) -> None:
    """The actions of the command; ``add_settings`` adds the flags of an experiment."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    keys = actions.add_parser("keys", help="certificates and node keys, once for a federation")
    keys.add_argument("--out", type=Path, default=Path("keys"), help="new folder [keys]")
    keys.add_argument(
        "--host", action="append", required=True, help="name or address of the SuperLink; repeat it"
    )
    keys.add_argument("--nodes", type=int, default=3, help="how many node keys [3]")

    shards = actions.add_parser(
        "shards",
        help="each client's samples in an experiment, one file for each, one folder for each node",
        usage="specgrad-fl flower shards [--out FOLDER] [--nodes N] [--SETTING VALUE ...]",
    )
    shards.add_argument("--out", type=Path, default=Path("shards"), help="folder [shards]")
    add_settings(shards)

    link = actions.add_parser("superlink", help="a SuperLink with TLS and node keys")
    link.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    link.add_argument("--port", type=int, default=9092, help="[9092]")
    link.add_argument("--keys", type=Path, help="folder of `specgrad-fl flower keys`")
    link.add_argument("--home", type=Path, default=Path("superlink"), help="folder [superlink]")
    _add_insecure(link)

    node = actions.add_parser("node", help="a SuperNode for the clients in a folder")
    node.add_argument("--superlink", required=True, metavar="HOST:PORT")
    node.add_argument("--data", type=Path, required=True, help="folder of this node's shards")
    node.add_argument("--state", type=Path, help="folder for client states [DATA/state]")
    node.add_argument("--tls-ca", default="", help="the authority's certificate, ca.crt")
    node.add_argument("--key", default="", help="this node's private key")
    node.add_argument("--port", type=int, default=9094, help="loopback port of its own [9094]")
    node.add_argument(
        "--allow", action="append", default=[], metavar="MODULE:NAME",
        help="a model or method of your own that a server may ask for; repeat it [none]",
    )  # fmt: skip
    node.add_argument("--device", default="", help="torch device, if not the run's")
    node.add_argument(
        "--poll", type=float, default=0.3, help="seconds between looks for messages, up to 3 [0.3]"
    )
    _add_insecure(node)


def _add_insecure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--insecure", action="store_true", help="no TLS and no keys; loopback interface only"
    )


def run(arguments: argparse.Namespace, settings: Callable[[], dict[str, Any]]) -> None:
    """Do one action; ``settings`` reads those of an experiment."""
    from specgrad_fl.flower.launch import check_installed

    check_installed()
    if arguments.action == "shards":
        _shards(arguments.out, Config(**settings()))
    else:
        {"keys": _keys, "superlink": _superlink, "node": _node}[arguments.action](arguments)


def _keys(arguments: argparse.Namespace) -> None:
    from specgrad_fl.flower.security import make_keys

    if arguments.nodes < 1:
        raise ConfigError(f"nodes is {arguments.nodes}; the least is 1")
    names = [f"node-{number}" for number in range(arguments.nodes)]
    keys = make_keys(arguments.out, arguments.host, names)
    print(f"{keys.folder}: ca.crt for everybody, superlink.* for the SuperLink, node-K for node K")


def _shards(out: Path, config: Config) -> None:
    from specgrad_fl import prepare
    from specgrad_fl.flower.launch import write_shards

    folders = [out / f"node-{number}" for number in range(config.nodes)]
    for folder in folders:
        if folder.exists():
            raise RunError(f"{folder} exists; choose another --out, or remove it")
    dataset = prepare.load_data(config)
    partition = prepare.divide(config, dataset)
    if config.nodes > len(partition.clients):
        raise ConfigError(
            f"nodes is {config.nodes}, and there are {len(partition.clients)} clients; choose at "
            "most as many"
        )
    write_shards(config, dataset, partition, folders)
    print(f"{out}: copy node-K to machine K, and nothing else of the data")


def _check_secure(arguments: argparse.Namespace, host: str, remedy: str) -> None:
    from specgrad_fl.flower.launch import is_loopback

    if arguments.insecure and not is_loopback(host):
        raise ConfigError(f"insecure is for the loopback interface, not for {host}; {remedy}")


def _superlink(arguments: argparse.Namespace) -> None:
    from specgrad_fl.flower.security import Keys
    from specgrad_fl.flower.superlink import SuperLink

    _check_secure(arguments, arguments.host, "make keys and give --keys")
    if arguments.keys is None and not arguments.insecure:
        raise ConfigError(
            "a SuperLink needs --keys; make them with `specgrad-fl flower keys`, or ask for "
            "--insecure on the loopback interface"
        )
    keys = None if arguments.insecure else Keys(arguments.keys).check()
    log = arguments.home / "log.txt"
    link = SuperLink(arguments.host, arguments.port, keys, arguments.home, log)
    print(f"SuperLink at {link.address}; log in {log}", flush=True)
    try:
        link.process.wait()
        link.process.check()
    finally:
        link.process.stop()


def _node(arguments: argparse.Namespace) -> None:
    from specgrad_fl.flower import shards, supernode
    from specgrad_fl.flower.launch import split_address
    from specgrad_fl.flower.processes import LOOPBACK, check_port

    host, _ = split_address(arguments.superlink)
    _check_secure(arguments, host, "give --tls-ca and --key")
    if not arguments.insecure and not arguments.key:
        raise ConfigError(
            "a node needs --key, its private key; or ask for --insecure on the loopback interface"
        )
    for flag, path in (("tls-ca", arguments.tls_ca), ("key", arguments.key)):
        if path and not Path(path).is_file():
            raise ConfigError(f"--{flag} is {path}, which is no file")
    if not shards.clients_in(arguments.data):
        raise RunError(
            f"{arguments.data} has no client's file; make them with `specgrad-fl flower shards`"
        )
    if not arguments.poll > 0:
        raise ConfigError(f"poll is {arguments.poll}; choose a positive number such as 0.3")
    check_port(LOOPBACK, arguments.port)
    settings = supernode.NodeSettings(
        superlink=arguments.superlink,
        data=arguments.data,
        state=arguments.state or arguments.data / "state",
        port=arguments.port,
        authority=arguments.tls_ca,
        key=arguments.key,
        insecure=arguments.insecure,
        device=arguments.device,
        allow=tuple(arguments.allow),
        poll=arguments.poll,
    )
    code = supernode.run(settings)
    if code:
        raise RunError(f"the SuperNode ended with exit code {code}; it said why above")


def register(commands: Commands) -> None:
    """Add ``specgrad-fl flower``."""
    flower = commands.add(
        "flower",
        "the machines of a federation: keys, shards, superlink, node",
        lambda arguments: run(arguments, lambda: settings_of(arguments)),
    )
    add_actions(flower, add_settings)
