"""Certificates and keys of a deployment: its own CA, the server's certificate, device keys."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmom.core.errors import FedMomError

DAYS = 825  # the longest that common programs accept of a server's certificate
NO_USE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


def write_server(folder: Path, hosts: list[str]) -> None:
    """Write ca.pem, ca.key, server.pem and server.key.

    Args:
        folder: Where to.
        hosts: The names and addresses that devices and programs call the server by.
    """
    authority, key = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = _name("FedMom deployment CA")
    own = _certificate(issuer, issuer, authority, authority)
    ca = (
        own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_use(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0]), issuer, key, authority)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_use(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    write_secret(folder / "ca.key", _pem(authority))
    write_secret(folder / "server.key", _pem(key))
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))


def write_device(private: Path, public: Path) -> None:
    """Write a device's key pair in the form that Flower reads: OpenSSH's, on a NIST curve."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )


def public_key_bytes(public: Path) -> bytes:
    """Return a public key as Flower registers it."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key = serialization.load_ssh_public_key(public.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None  # no key at all, or one of an unknown kind
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedMomError(
            f"{public} is not the public key of a device. Restore it from a copy, or remove it."
        )
    return public_key_to_bytes(key)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of devices may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
    )


def _use(**what: bool) -> x509.KeyUsage:
    uses: dict[str, Any] = NO_USE | what
    return x509.KeyUsage(**uses)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
