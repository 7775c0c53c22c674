"""Certificates and keys of a deployment: its own CA, the server's certificate, device keys."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmom.core.errors import FedMomError
from fedmom.core.files import read_file, write_atomic

DAYS = 825  # the longest that common programs accept of a server's certificate
USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def write_server(folder: Path, hosts: list[str]) -> None:
    """Write ca.pem, ca.key, server.pem and server.key.

    Args:
        folder: Where to.
        hosts: The names and addresses that devices and programs call the server by.
    """
    authority, own = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = _name("FedMom deployment CA")
    ca = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_use("key_cert_sign", "crl_sign"), True),
    ]
    server = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_use("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_host(h) for h in hosts]), False),
    ]
    now = datetime.datetime.now(datetime.UTC)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    rows = ("ca", issuer, authority, ca), ("server", _name(hosts[0]), own, server)
    for name, subject, key, extensions in rows:
        public = key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))  # clocks of devices may be behind
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(signer, critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(authority, hashes.SHA384())
        write_secret(folder / f"{name}.key", _private(key, serialization.PrivateFormat.PKCS8))
        content = certificate.public_bytes(serialization.Encoding.PEM)
        write_atomic(folder / f"{name}.pem", content)


def write_device(private: Path, public: Path) -> None:
    """Write a device's key pair in the form that Flower reads: OpenSSH's, on a NIST curve."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, _private(key, serialization.PrivateFormat.OpenSSH))
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    write_atomic(public, key.public_key().public_bytes(*form))


def public_key_bytes(public: Path) -> bytes:
    """Return a public key as Flower registers it."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key = serialization.load_ssh_public_key(read_file(public))
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


def _use(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in names for name in USES})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    unlocked = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, unlocked)
