"""Certificates and keys of a federation: an authority, the SuperLink's certificate, node keys.

ca.crt, ca.key          the authority; every node and every `specgrad-fl train` gets ca.crt
superlink.crt, .key     for the SuperLink
NAME, NAME.pub          for one node each; the private part goes to the node, the public part stays
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from specgrad_fl.errors import ConfigError, RunError

DAYS = 825
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Keys:
    """A folder of certificates and keys."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "superlink.crt"

    @property
    def key(self) -> Path:
        return self.folder / "superlink.key"

    def node(self, name: str) -> Path:
        """The private key of a node."""
        return self.folder / name

    def public(self) -> list[Path]:
        """The public keys of all nodes."""
        return sorted(self.folder.glob("*.pub"))

    def check(self) -> Keys:
        """These keys, once every file that a SuperLink needs is known to be there."""
        for path in (self.authority, self.certificate, self.key):
            if not path.is_file():
                raise RunError(f"there is no {path}; make it with `specgrad-fl flower keys`")
        return self


def make_keys(
    folder: Path, hosts: Iterable[str], nodes: Iterable[str], sign_more: bool = True
) -> Keys:
    """A new authority with certificate and node keys; existing files are never replaced.

    sign_more: keep the authority's own key, so that further certificates can be signed
    """
    keys = Keys(folder)
    names = list(nodes)
    for path in (keys.authority, *(keys.node(name) for name in names)):
        if path.exists():
            raise RunError(f"{path} exists; choose another --out, or remove the old keys")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority, server = _new_key(), _new_key()
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "specgrad federation")])
        root = _certificate(issuer, issuer, authority, authority, [])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "superlink")])
        leaf = _certificate(subject, issuer, server, authority, list(hosts))
        _write(keys.authority, _pem(root))
        if sign_more:
            _write_secret(folder / "ca.key", _private(authority))
        _write(keys.certificate, _pem(leaf))
        _write_secret(keys.key, _private(server))
        for name in names:
            _write_node_key(keys.node(name))
    except OSError as error:
        raise RunError(f"cannot write keys to {folder}: {error.strerror}") from error
    return keys


def _new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(
    key: Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_node_key(path: Path) -> None:
    key = _new_key()
    _write_secret(path, _private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(path.with_name(f"{path.name}.pub"), public + b"\n")


def _write(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)


def _write_secret(path: Path, contents: bytes) -> None:
    """Readable by its owner alone from the first byte on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(contents)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Key, signer: Key, hosts: list[str]
) -> x509.Certificate:
    """For an authority without hosts, for a server with."""
    now = datetime.datetime.now(datetime.timezone.utc)
    authority = not hosts
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .add_extension(_usage(authority), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        # a name with other letters is written in its ASCII form, as certificates want it
        return x509.DNSName(host.encode("idna").decode())
    except ValueError as error:
        raise ConfigError(f"--host is {host!r}, which is no name of a host: {error}") from error
