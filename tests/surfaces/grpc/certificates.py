"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates and writes them into a folder, in PEM."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        self._certificate = self._signed(name, self._key, now - DAY, now + DAY, authority=True)
        self.path = folder / f"{name}.ca.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, expired: bool = False) -> tuple[Path, Path]:
        """A certificate and its key, for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        certificate = self._signed(name, key, now - 3 * DAY, now - DAY if expired else now + DAY, authority=False)
        paths = self._folder / f"{self._name}.{name}.pem", self._folder / f"{self._name}.{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return paths

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, begins: dt.datetime, ends: dt.datetime, *, authority: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if authority else self._certificate.subject
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
        return builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
