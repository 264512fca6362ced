"""Downloads from a server on this machine: whole, resumed, broken, wrong and malicious."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from specgrad_data import DataError, DataWarning
from specgrad_data import catalog as list_entries
from specgrad_data import fetch as fetch_module
from specgrad_data.catalog import ENTRIES, Entry, RemoteFile, is_archive
from specgrad_data.fetch import fetch, is_here, unpack
from specgrad_data.files import read_npz

CONTENT = bytes(range(256)) * 4000


class Server:
    """Serves ``files`` by name and keeps the Range header of every request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.supports_range = True
        self.break_after: int | None = None
        self.sends_length = True
        self.shift = 0
        self.failures = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                """Keep the test output quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.ranges.append(asked)
        if self.failures:
            self.failures -= 1
            handler.send_error(503)
            return
        content = self.files.get(handler.path.lstrip("/"))
        if content is None:
            handler.send_error(404)
            return
        start = 0
        if asked and self.supports_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + self.shift
            if start >= len(content):
                handler.send_error(416)
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        body = content[start:]
        if self.sends_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if self.break_after is not None:
            body = body[: self.break_after]
        handler.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    yield running
    running.close()


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A data set ``toy`` of one plain file, ``toy.npy``, whose address is the server's."""
    server.files["toy.npy"] = CONTENT
    register(monkeypatch, server, "toy.npy", CONTENT)
    return server


def register(
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    name: str,
    content: bytes,
    provides: dict[str, int | None] | None = None,
) -> None:
    file = RemoteFile(
        name,
        f"{server.url}/{name}",
        size=len(content),
        md5=hashlib.md5(content).hexdigest(),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(
        ENTRIES, "toy", Entry("toy", "a toy", files=(file,), provides=provides or {})
    )


def test_whole_file_with_progress(toy: Server, tmp_path: Path):
    steps: list[tuple[int, int]] = []
    folder = fetch("toy", tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert folder == tmp_path / "toy"
    assert (folder / "toy.npy").read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["toy.npy"]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert len(steps) > 1
    assert steps == sorted(steps)


def test_second_fetch_asks_nothing(toy: Server, tmp_path: Path):
    fetch("toy", tmp_path)
    fetch("toy", tmp_path)
    assert toy.ranges == [None]


def test_mirror(toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    toy.files["mirror/toy.npy"] = toy.files.pop("toy.npy")
    fetch("toy", tmp_path, base_url=f"{toy.url}/mirror/")
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("begun", "behaviour", "asked"),
    [
        pytest.param(CONTENT[:1000], {}, ["bytes=1000-"], id="the rest alone is asked for"),
        pytest.param(
            b"old" * 1000, {"supports_range": False}, ["bytes=3000-"], id="the server sends all"
        ),
        pytest.param(
            CONTENT[:1000], {"shift": 7}, ["bytes=1000-", None], id="another range is not mixed in"
        ),
        pytest.param(CONTENT + b"more", {}, [None], id="too long"),
        pytest.param(CONTENT, {}, [], id="whole"),
    ],
)
def test_a_part_is_completed(
    toy: Server, tmp_path: Path, begun: bytes, behaviour: dict[str, object], asked: list[str | None]
):
    vars(toy).update(behaviour)
    part = tmp_path / "toy" / "toy.npy.part"
    part.parent.mkdir()
    part.write_bytes(begun)
    fetch("toy", tmp_path)
    assert toy.ranges == asked
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT
    assert not part.exists()


def test_broken_connections_are_taken_up_within_one_fetch(toy: Server, tmp_path: Path):
    toy.break_after = 300_000
    fetch("toy", tmp_path)
    assert toy.ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT


def test_given_up_connection_keeps_what_has_come(toy: Server, tmp_path: Path):
    toy.break_after = 1000
    with pytest.raises(DataError, match="run the command again to go on after 4000 bytes"):
        fetch("toy", tmp_path)
    toy.break_after = None
    fetch("toy", tmp_path)
    assert toy.ranges[-1] == "bytes=4000-"
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT


def test_server_that_is_busy_for_a_while(toy: Server, tmp_path: Path):
    toy.failures = 3
    fetch("toy", tmp_path)
    assert len(toy.ranges) == 4
    (tmp_path / "toy" / "toy.npy").unlink()
    toy.failures = 4
    with pytest.raises(DataError, match="Service Unavailable"):
        fetch("toy", tmp_path)


def test_unknown_size_and_nothing_left_to_send(
    toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = RemoteFile("toy.npy", f"{toy.url}/toy.npy", sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(ENTRIES, "toy", Entry("toy", "a toy", files=(file,)))
    part = tmp_path / "toy" / "toy.npy.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    fetch("toy", tmp_path)
    assert toy.ranges == [f"bytes={len(CONTENT)}-"]
    toy.sends_length = False
    (tmp_path / "toy" / "toy.npy").unlink()
    fetch("toy", tmp_path)
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT


def test_wrong_checksum_removes_the_file(toy: Server, tmp_path: Path):
    toy.files["toy.npy"] = CONTENT[::-1]
    with pytest.raises(DataError, match=r"toy\.npy has sha256 .* instead of .* was removed"):
        fetch("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_resumed_rubbish_is_removed_and_then_fetched_whole(toy: Server, tmp_path: Path):
    part = tmp_path / "toy" / "toy.npy.part"
    part.parent.mkdir()
    part.write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="was removed"):
        fetch("toy", tmp_path)
    fetch("toy", tmp_path)
    assert (tmp_path / "toy" / "toy.npy").read_bytes() == CONTENT


def test_sha256_is_preferred(toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = RemoteFile("toy.npy", f"{toy.url}/toy.npy", sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(ENTRIES, "toy", Entry("toy", "a toy", files=(good,)))
    fetch("toy", tmp_path)
    bad = RemoteFile("toy.npy", f"{toy.url}/toy.npy", sha256="0" * 64)
    monkeypatch.setitem(ENTRIES, "toy", Entry("toy", "a toy", files=(bad,)))
    with pytest.raises(DataError, match=r"sha256 .* delete it and fetch it again"):
        fetch("toy", tmp_path)
    # what the user put there is the user's to delete
    assert (tmp_path / "toy" / "toy.npy").exists()


def test_another_size_is_refused_before_it_is_downloaded(toy: Server, tmp_path: Path):
    toy.files["toy.npy"] = b"<html>please sign in</html>"
    with pytest.raises(DataError, match="offers 27 bytes instead of 1024000"):
        fetch("toy", tmp_path)


def test_missing_on_the_server_and_no_server(toy: Server, tmp_path: Path):
    del toy.files["toy.npy"]
    with pytest.raises(DataError, match=r"Not Found.*put toy\.npy in .*toy by hand"):
        fetch("toy", tmp_path)
    assert len(toy.ranges) == 1
    with pytest.raises(DataError, match="Connection refused"):
        fetch("toy", tmp_path, base_url="http://127.0.0.1:9/")


def unpublished(monkeypatch: pytest.MonkeyPatch, server: Server, md5: str | None = None) -> None:
    """Take the SHA-256 of the file out of the catalogue."""
    file = RemoteFile("toy.npy", f"{server.url}/toy.npy", md5=md5)
    monkeypatch.setitem(ENTRIES, "toy", Entry("toy", "a toy", files=(file,)))


def test_addresses_that_others_could_answer_are_refused(
    toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(DataError, match="is not https"):
        fetch("toy", tmp_path, base_url=f"file://{tmp_path}")
    unpublished(monkeypatch, toy, hashlib.md5(CONTENT).hexdigest())
    with pytest.raises(DataError, match="is not https, and no SHA-256 of the file is known"):
        fetch("toy", tmp_path)
    assert toy.ranges == []
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert fetch("toy", tmp_path, sha256={"toy.npy": digest})
    with pytest.raises(DataError, match=r"sha256 names 'toy\.npz'; did you mean 'toy.npy'"):
        fetch("toy", tmp_path, sha256={"toy.npz": digest})


def test_a_redirection_to_http_is_refused(
    toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first address is https as far as is asked; what answers is not."""
    unpublished(monkeypatch, toy)
    check, asked = fetch_module._check_address, []
    monkeypatch.setattr(
        fetch_module, "_check_address", lambda f, u: check(f, u) if asked else asked.append(u)
    )
    with pytest.raises(DataError, match="is not https"):
        fetch("toy", tmp_path)
    assert not (tmp_path / "toy" / "toy.npy").exists()


def test_the_first_file_is_kept_as_the_right_one(
    toy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where no SHA-256 is published, in the format of sha256sum."""
    unpublished(monkeypatch, toy)
    path = tmp_path / "toy" / "toy.npy"
    path.parent.mkdir()
    assert not is_here(ENTRIES["toy"], tmp_path)
    path.write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    with pytest.warns(DataWarning, match=f"SHA256SUMS now has {digest}"):
        fetch("toy", tmp_path)
    assert (tmp_path / "toy" / "SHA256SUMS").read_text() == f"{digest}  toy.npy\n"
    fetch("toy", tmp_path)
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(DataError, match=f"instead of {digest}"):
        fetch("toy", tmp_path)
    path.unlink()
    assert not is_here(ENTRIES["toy"], tmp_path)
    fetch("toy", tmp_path)  # over http too now
    path.with_name("SHA256SUMS").write_text("no digest\n")
    with pytest.raises(DataError, match="SHA256SUMS cannot be read"):
        fetch("toy", tmp_path)


def test_folder_that_cannot_be_written(toy: Server, tmp_path: Path):
    (tmp_path / "toy").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        fetch("toy", tmp_path)


def test_names_without_download(tmp_path: Path):
    with pytest.raises(DataError, match="there is no data set 'nothing'"):
        fetch("nothing", tmp_path)
    with pytest.raises(DataError, match="digits needs no download"):
        fetch("digits", tmp_path)
    with pytest.raises(DataError, match=r"femnist has no single official file.*LEAF"):
        fetch("femnist", tmp_path)


def make_tar(members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(names: list[str], kind: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as package:
        for name in names:
            member = zipfile.ZipInfo(name)
            member.external_attr = kind << 16
            package.writestr(member, b"content")
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_archive_is_unpacked_and_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
):
    if suffix == ".zip":
        content = make_zip(["inner/a.bin", "inner/deep/b.bin"])
    else:
        members = [(tarfile.TarInfo(f"inner/{n}.bin"), b"content") for n in ("a", "deep/b")]
        content = make_tar(members, "w" if suffix == ".tar" else "w:gz")
    server.files["toy" + suffix] = content
    register(monkeypatch, server, "toy" + suffix, content, {"inner/a.bin": 7})
    folder = fetch("toy", tmp_path)
    assert (folder / "inner" / "a.bin").read_bytes() == b"content"
    assert (folder / "inner" / "deep" / "b.bin").read_bytes() == b"content"
    assert [path.name for path in folder.iterdir()] == ["inner"]
    fetch("toy", tmp_path)
    assert len(server.ranges) == 1
    # what was unpacked is damaged: the archive is fetched and replaces it
    (folder / "inner" / "a.bin").write_bytes(b"cut")
    fetch("toy", tmp_path)
    assert (folder / "inner" / "a.bin").read_bytes() == b"content"
    assert [path.name for path in folder.iterdir()] == ["inner"]


def test_archive_put_there_by_hand_is_unpacked_offline(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = make_tar([(tarfile.TarInfo("inner/a.bin"), b"content")])
    register(monkeypatch, server, "toy.tar.gz", content, {"inner/a.bin": None})
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.tar.gz").write_bytes(content)
    folder = fetch("toy", tmp_path)
    assert server.ranges == []
    assert (folder / "inner" / "a.bin").read_bytes() == b"content"
    assert (folder / "toy.tar.gz").exists()


def special(name: str, kind: bytes, target: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return make_tar([(tarfile.TarInfo("harmless"), b"1"), (member, b"")])


MALICIOUS = {
    "tar with ..": make_tar([(tarfile.TarInfo("../escaped"), b"1")]),
    "tar with .. inside": make_tar([(tarfile.TarInfo("a/../../escaped"), b"1")]),
    "tar with an absolute name": make_tar([(tarfile.TarInfo("/tmp/escaped"), b"1")]),
    "tar with a backslash": make_tar([(tarfile.TarInfo("..\\escaped"), b"1")]),
    "tar with a symbolic link out": special("link", tarfile.SYMTYPE, "../.."),
    "tar with a symbolic link to a file": special("link", tarfile.SYMTYPE, "/etc/passwd"),
    "tar with a hard link": special("link", tarfile.LNKTYPE, "../escaped"),
    "tar with a device": special("null", tarfile.CHRTYPE),
    "tar with a pipe": special("pipe", tarfile.FIFOTYPE),
    "zip with ..": make_zip(["../escaped"]),
    "zip with an absolute name": make_zip(["/tmp/escaped"]),
    "zip with a drive": make_zip(["C:/escaped"]),
    "zip with a symbolic link": make_zip(["link"], stat.S_IFLNK | 0o777),
}


@pytest.mark.parametrize("content", MALICIOUS.values(), ids=MALICIOUS.keys())
def test_malicious_archive_writes_nothing(tmp_path: Path, content: bytes):
    archive = tmp_path / "bad.archive"
    archive.write_bytes(content)
    folder = tmp_path / "deep" / "folder"
    with pytest.raises(DataError, match="fetch the official one"):
        unpack(archive, folder)
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.archive", "deep"]


def test_archive_that_unpacks_to_too_much(tmp_path: Path):
    for content in (
        make_tar([(tarfile.TarInfo(n), bytes(6000)) for n in "ab"]),
        make_zip(["a"] + [f"{n}" for n in range(2000)]),
    ):
        (tmp_path / "bomb").write_bytes(content)
        with pytest.raises(DataError, match="unpacks to more than 10000 bytes"):
            unpack(tmp_path / "bomb", tmp_path / "out", largest=10_000)
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("cut", [1, 40, -20])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damaged_archive(tmp_path: Path, kind: str, cut: int):
    whole = (
        make_tar([(tarfile.TarInfo("a"), bytes(100))]) if kind == "tar" else make_zip(["a", "b"])
    )
    (tmp_path / "cut").write_bytes(whole[:cut])
    with pytest.raises(DataError, match="damaged or not a tar or zip file"):
        unpack(tmp_path / "cut", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_changed_bytes_of_an_archive_are_refused(tmp_path: Path, kind: int):
    """Each decoder has errors of its own."""
    for seed in range(20):
        draw = random.Random(seed)
        path = tmp_path / f"{seed}.npz"
        with zipfile.ZipFile(path, "w", kind) as package:
            package.writestr("x.npy", draw.randbytes(200))
        content = bytearray(path.read_bytes())
        for _ in range(5):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        for read in (lambda p: unpack(p, tmp_path / "out"), lambda p: read_npz(p, ("x",))):
            with contextlib.suppress(DataError):
                read(path)


def test_a_header_that_breaks_off_is_refused(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    content = (tmp_path / "x.npy").read_bytes().replace(b"}", b"(")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as package:
        package.writestr("x.npy", content)
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(tmp_path / "x.npz", ("x",))


# nobody publishes a SHA-256 of these: pinned when they are first downloaded
UNPUBLISHED = (
    "qmnist-train-images-idx3-ubyte.gz",
    "qmnist-test-images-idx3-ubyte.gz",
    "CIFAR-100-C.tar",
)


def test_catalogue_is_complete():
    for entry in list_entries():
        assert entry.what
        assert entry.files or entry.by_hand or entry.name == "digits"
        for file in entry.files:
            assert file.url.startswith("https://")
            assert file.sha256 is None or len(file.sha256) == 64
            assert file.md5 is None or len(file.md5) == 32
            assert file.sha256 or (file.md5 and file.name in UNPUBLISHED)
            assert not is_archive(file.name) or entry.provides
