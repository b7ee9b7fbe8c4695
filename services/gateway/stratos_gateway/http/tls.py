"""The TLS context of the API, made again when the certificate's files have changed.

Every handshake gets the newest certificate that can be used; connections that are open keep theirs.  Files that do not
fit together, because a writer is in the middle of its work or wrote nonsense, are logged once, and the certificate of
before stays in use.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from cryptography import x509

from stratos.rpc.binding import StartError
from stratos_gateway.http.config import HttpTlsConfig

_log = logging.getLogger(__name__)
_Signature = tuple[tuple[int, int, int], ...]


class ReloadingContext:
    """Belongs to the event loop.

    Args:
        config: where the files are.

    Raises:
        StartError: they cannot be used.
    """

    def __init__(self, config: HttpTlsConfig) -> None:
        self._config = config
        self._problem = ""
        try:
            self._signature = self._look()
            self._newest = self._make()
        except OSError as error:  # ssl.SSLError is one
            raise StartError(f"the certificate of the API cannot be used: {_text(error)}") from None
        self._not_after_unix_s = _not_after(config)
        self.listening = self._make()
        """The context to listen with; it hands each handshake over to the newest one."""
        self.listening.sni_callback = self._choose

    def not_after_unix_s(self) -> float:
        """End of validity of the certificate that the last handshake got; any thread may ask."""
        return self._not_after_unix_s

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current()

    def _current(self) -> ssl.SSLContext:
        problem = ""
        try:
            signature = self._look()
            if signature != self._signature:
                self._newest = self._make()  # a failure leaves the signature, so that the next handshake tries again
                self._not_after_unix_s = _not_after(self._config)
                self._signature = signature
                _log.info("the certificate of the API was read again")
        except OSError as error:
            problem = _text(error)
        if problem and problem != self._problem:
            _log.error("the certificate of the API cannot be used: %s; the one of before stays", problem)
        self._problem = problem
        return self._newest

    def _look(self) -> _Signature:
        return tuple(_version(path) for path in (self._config.certificate_path, self._config.key_path))

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._config.certificate_path, self._config.key_path, password=_refuse_to_ask)
        return context


def _not_after(config: HttpTlsConfig) -> float:
    # OpenSSL has read the file a moment ago, so it holds a certificate.
    leaf = x509.load_pem_x509_certificates(config.certificate_path.read_bytes())[0]
    return leaf.not_valid_after_utc.timestamp()


def _version(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _refuse_to_ask() -> str:
    """Without it OpenSSL would ask for a pass phrase at the terminal."""
    raise OSError("the private key has a pass phrase")


def _text(error: OSError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
