"""Certificates and keys of a federation: an authority, the SuperLink's certificate, node keys.

ca.crt, ca.key          the authority; every node and whoever starts runs gets ca.crt
superlink.crt, .key     for the SuperLink
NAME, NAME.pub          for one node each; the private part goes to the node, the public part stays
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from specgrad_fl.errors import ConfigError, RunError

DAYS = 825
Key = ec.EllipticCurvePrivateKey


def make(folder: Path, hosts: list[str], nodes: list[str]) -> None:
    """A new authority with certificate and node keys; existing files are never replaced."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = ("specgrad federation", "superlink")
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in names)
    files = {
        "ca.crt": _certificate(issuer, issuer, authority, authority, []),
        "superlink.crt": _certificate(subject, issuer, server, authority, hosts),
        "ca.key": _private(authority, forms.PrivateFormat.PKCS8),
        "superlink.key": _private(server, forms.PrivateFormat.PKCS8),
    }
    for name in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        ssh = (forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
        files |= {name: _private(key, forms.PrivateFormat.OpenSSH)}
        files |= {f"{name}.pub": key.public_key().public_bytes(*ssh)}
    for name in files:
        if (folder / name).exists():
            raise RunError(f"{folder / name} exists; choose another --out, or remove the old keys")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, contents in files.items():
            mode = 0o644 if name.endswith((".crt", ".pub")) else 0o600
            # readable by its owner alone from the first byte on
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(handle, "wb") as file:
                file.write(contents)
    except OSError as error:
        raise RunError(f"cannot write keys to {folder}: {error.strerror}") from error


def _private(key: Key, form: forms.PrivateFormat) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, form, forms.NoEncryption())


def _certificate(owner: x509.Name, issuer: x509.Name, key: Key, signer: Key, hosts: Any) -> bytes:
    """For an authority without hosts, for a server with."""
    now, authority = datetime.datetime.now(datetime.timezone.utc), not hosts
    sign = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(of_signer, critical=False)
        .add_extension(sign, critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA384()).public_bytes(forms.Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        # a name with other letters is written in its ASCII form, as certificates want it
        return x509.DNSName(host.encode("idna").decode())
    except ValueError as error:
        raise ConfigError(f"--host is {host!r}, which is no name of a host: {error}") from error
