"""Certificates of the server, for HTTPS and gRPC alike: read and judged before anything listens."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import msgspec

from taskmill.config import Settings
from taskmill.errors import InvalidSettings

__all__ = ["Tls"]

log = logging.getLogger("taskmill")


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM. With `client_ca`, only clients are let in whose certificate it has signed (mTLS)."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, settings: Settings, folder: Path) -> Tls | None:
        """What the settings say; relative paths start at `folder`. None: no TLS."""
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        ca = None if settings.tls_client_ca is None else folder / settings.tls_client_ca
        found = cls(folder / settings.tls_cert, folder / settings.tls_key, ca)
        found.context()
        if found.key.stat().st_mode & 0o077:
            log.warning("%s can be read by other users of this machine: chmod 600 %s", found.key, found.key)
        return found

    def context(self) -> ssl.SSLContext:
        """For a server of HTTPS; and the judgement of the files for everybody."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for setting, path in (("tls_cert", self.cert), ("tls_key", self.key), ("tls_client_ca", self.client_ca)):
            if path is not None:
                _readable(setting, path)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidSettings(
                f"{self.cert} and {self.key} are no certificate with its key: {_reason(error)}", code="invalid_certificate", field="tls_cert",
                hint="PEM files that belong together; the key without a password",
            ) from None  # fmt: skip
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise InvalidSettings(
                    f"{self.client_ca} holds no certificates: {_reason(error)}", code="invalid_certificate", field="tls_client_ca",
                    hint="a PEM file with the certificate of whoever signs those of the clients",
                ) from None  # fmt: skip
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal, and a server has none."""
    return ""


def _readable(setting: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"cannot read {path}: {error.strerror}", code="unreadable_file", field=setting, hint="name a file that exists and may be read"
        ) from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or "not PEM").lower().replace("_", " ")
