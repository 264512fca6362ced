"""Atomic writes, checksummed tensors, per-client state.

A client's state is written to a file that names client and round, and never changed afterwards. A
checkpoint lists the files it needs; files that it does not list are removed only once it is safely
stored. So a run killed at any moment finds every file of its last checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# safetensors is imported where it is used: `specgrad-fl list` answers without it
from specgrad_fl.errors import RunError

# nobody else ends a name like this, so that what a crash left half written can be removed
TEMPORARY = ".specgrad-tmp"
# of folders that hold what clients have or learned
PRIVATE = 0o700


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it takes the place of ``path`` when the block succeeds.

    The data reach the disk before the name does, so that a crash of the machine leaves the old
    file or the new one. A failure leaves the old file and no litter.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        allowed = path.parent.stat().st_mode & 0o666
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, allowed))
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        # where nothing can be written, nothing can be removed, and the reason is the first one
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def _sync_folder(folder: Path) -> None:
    """Bring names to the disk: after a rename alone, a power cut may leave the old file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link(path: Path, other: Path) -> None:
    """Make ``other`` a second name of a file that is only ever replaced; a copy where need be."""
    temporary = other.with_name(other.name + TEMPORARY)
    try:
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)
        os.replace(temporary, other)
        temporary.unlink(missing_ok=True)  # which stays where both were names of one file already
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(other, error) from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """A folder to write to, with those above it; ``mode`` is that of the last one, if new."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Replace the contents of a text file."""
    write_bytes(path, text.encode("utf-8"))


def append_text(path: Path, text: str, sync: bool = False) -> None:
    """Add to a text file; with ``sync`` it is on disk before this returns."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Replace the contents of a file that people read too."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_bytes(path: Path, contents: bytes) -> None:
    """Replace the contents of a file."""
    with replacing(path) as temporary:
        temporary.write_bytes(contents)


def cannot_write(path: Path, error: OSError) -> RunError:
    """The refusal for a full disk, a missing permission and their like."""
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return RunError(
            f"cannot write {path}: its folder was removed while it was in use; begin again in a "
            "new folder"
        )
    return RunError(
        f"cannot write {path}: {reason}; everything saved before is intact, so make room or "
        "choose another --out, and resume"
    )


DIGEST = "sha256"
# what checkpoints say of other files since they have a digest of their own
NEWER = "metrics"


def digest(tensors: dict[str, Tensor], facts: str) -> str:
    """SHA-256 of names, types, shapes, values, and of facts as the text that is stored."""
    found = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """Replace ``path``; the digest of what was stored. ``facts`` must be fit for JSON."""
    from safetensors.torch import save as serialised

    contents = {name: tensor.contiguous() for name, tensor in tensors.items()}
    found = digest(contents, json.dumps(facts, sort_keys=True))
    # safetensors writes several entries in an order that changes, so all is in one
    metadata = {"facts": json.dumps({**facts, DIGEST: found}, sort_keys=True)}
    write_bytes(path, serialised(contents, metadata=metadata))
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file of :func:`save_tensors` and its facts; a refusal where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file, dict(json.loads((file.metadata() or {})["facts"]))
    except FileNotFoundError as error:
        raise spoiled(f"{path} is missing") from error
    except PermissionError:  # another user's, and not damaged
        raise
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        why = f"{path} is not a checkpoint of this trainer or is damaged ({error!r})"
        raise spoiled(why) from error


def load_facts(path: Path) -> dict[str, Any]:
    """Read the facts of a file of tensors, unchecked: its digest would need all of them."""
    with _opened(path) as (_, facts):
        facts.pop(DIGEST, None)
        return facts


def load_tensors(path: Path, expected: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the result of :func:`save_tensors`; with ``expected``, only if it has that digest.

    Files that were written before there were digests are taken as they are.
    """
    with _opened(path) as (file, facts):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    own = facts.pop(DIGEST, "")
    stored = expected or own
    if (own and own != stored) or (not stored and NEWER in facts):
        raise changed(path)
    # in the order of the file: names that were numbers would be sorted otherwise now
    if stored and digest(tensors, json.dumps(facts)) != stored:
        raise changed(path)
    return tensors, facts


def spoiled(why: str) -> RunError:
    """The refusal for a file that a run cannot do without, with the way back."""
    return RunError(
        f"{why}; restore it from a copy, or begin again in a new folder with `specgrad-fl train "
        "--config RUN/config.toml --out NEW`"
    )


def changed(path: Path) -> RunError:
    """The refusal for a file that is not the one that the run wrote."""
    return spoiled(f"{path} has changed since it was written")


Vectors = dict[str, Tensor]
# the names of the files; whatever else is in the folder is not ours to remove
_OURS = re.compile(rf"\d{{6,}}-\d{{6,}}\.safetensors({re.escape(TEMPORARY)})?")


def client_path(folder: Path, client: int, round_number: int) -> Path:
    """The file of a client's state after a round."""
    return folder / f"{client:06d}-{round_number:06d}.safetensors"


class ClientRounds:
    """The rounds whose states clients hold that keep them elsewhere, on their own machines.

    newest: the round of the state that a client must go on from, for every client that has one
    stored, previous: the same after the last checkpoint and after the one before it
    digests: of what is stored here of each client
    """

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.stored: dict[int, int] = {}
        self.previous: dict[int, int] = {}
        self.digests: dict[int, str] = {}

    def restore(
        self,
        rounds: dict[int, int],
        digests: dict[int, str],
        previous: dict[int, int] | None = None,
    ) -> None:
        """Go back to the states that a checkpoint lists; keep those of the one before, too."""
        self.newest, self.stored, self.digests = dict(rounds), dict(rounds), dict(digests)
        self.previous = dict(previous or {})

    def get(self, client: int) -> Vectors:
        """Nothing: the state stays with the client."""
        return {}

    def put(self, client: int, round_number: int, state: Vectors) -> None:
        """Note the round after which a client's state was taken over."""
        self.newest[client] = round_number

    def flush(self) -> dict[int, int]:
        """The round of the newest state of each client."""
        return dict(self.newest)

    def sweep(self) -> None:
        """A checkpoint is stored: older states will not be asked for again."""
        self.previous, self.stored = self.stored, dict(self.newest)


class ClientStates(ClientRounds):
    """Vectors of length ``size`` by client, zero until they are first stored."""

    def __init__(self, folder: Path, names: tuple[str, ...], size: int, ram_mib: float) -> None:
        super().__init__()
        self.folder, self.names, self.size = folder, names, size
        self._capacity = int(ram_mib * 2**20 // max(1, 4 * size * len(names)))
        self._recent: OrderedDict[int, Vectors] = OrderedDict()
        self._unwritten: set[int] = set()

    def restore(
        self,
        rounds: dict[int, int],
        digests: dict[int, str],
        previous: dict[int, int] | None = None,
    ) -> None:
        """Go back to the states that a checkpoint lists, each of them read once."""
        super().restore(rounds, digests, previous)
        self._recent.clear()
        self._unwritten.clear()
        for client in rounds:
            self._read(client)
        self._remove_unneeded()

    def get(self, client: int) -> Vectors:
        """The state of a client."""
        if client not in self.newest:
            return {name: torch.zeros(self.size) for name in self.names}
        state = self._recent.get(client) or self._read(client)
        self._keep(client, state)
        return state

    def put(self, client: int, round_number: int, state: Vectors) -> None:
        """Store the state that a client has after a round."""
        super().put(client, round_number, state)
        self._unwritten.add(client)
        self._keep(client, {name: vector.clone() for name, vector in state.items()})

    def _keep(self, client: int, state: Vectors) -> None:
        self._recent[client] = state
        self._recent.move_to_end(client)
        while len(self._recent) > self._capacity:
            oldest, vectors = self._recent.popitem(last=False)
            if oldest in self._unwritten:
                self._write(oldest, vectors)

    def _path(self, client: int) -> Path:
        return client_path(self.folder, client, self.newest[client])

    def _read(self, client: int) -> Vectors:
        return load_tensors(self._path(client), self.digests.get(client, ""))[0]

    def _write(self, client: int, state: Vectors) -> None:
        make_folder(self.folder, PRIVATE)
        self.digests[client] = save_tensors(self._path(client), state, {})
        self._unwritten.discard(client)

    def flush(self) -> dict[int, int]:
        """Write what is not on disk yet; the round of the newest state of each client."""
        for client in sorted(self._unwritten):
            self._write(client, self._recent[client])
        return super().flush()

    def sweep(self) -> None:
        """Remove files that neither the stored checkpoint nor the one before it needs."""
        super().sweep()
        self._remove_unneeded()

    def _remove_unneeded(self) -> None:
        listed = (*self.newest.items(), *self.previous.items())
        needed = {client_path(self.folder, *each) for each in listed}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path not in needed and _OURS.fullmatch(path.name) and path.is_file():
                path.unlink()
