"""A server's TLS context, made again when its certificate's files have changed.

Every handshake gets the newest certificate that can be used; connections that are open keep theirs.  Files that do not
fit together, because a writer is in the middle of its work or wrote nonsense, are logged once, and the certificate of
before stays in use.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

_log = logging.getLogger(__name__)
_Signature = tuple[tuple[int, int, int], ...]


class ReloadingContext:
    """Belongs to the event loop.

    Args:
        name: of what is served, for the log.
        certificate_path: PEM.
        key_path: PEM.
        configure: the rest of a context, called for each one that is made.

    Raises:
        OSError: they cannot be used; an ``ssl.SSLError`` where they are no certificate and its key.
    """

    def __init__(
        self, name: str, certificate_path: Path, key_path: Path, configure: Callable[[ssl.SSLContext], None]
    ) -> None:
        self._name = name
        self._paths = certificate_path, key_path
        self._configure = configure
        self._problem = ""
        self.renew()
        self.listening = self._make()
        """The context to listen with; it hands each handshake over to the newest one."""
        self.listening.sni_callback = self._choose

    def not_after_unix_s(self) -> float:
        """End of validity of the certificate that the last handshake got; any thread may ask."""
        return self._not_after_unix_s

    def renew(self) -> None:
        """Make a context now, from what the files and ``configure`` say.

        Raises:
            OSError: as above; the one of before stays.
        """
        signature = self._look()
        newest = self._make()
        # OpenSSL has read the file a moment ago, so it holds a certificate.
        leaf = x509.load_pem_x509_certificates(self._paths[0].read_bytes())[0]
        self._newest, self._signature = newest, signature
        self._not_after_unix_s = leaf.not_valid_after_utc.timestamp()

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current()

    def _current(self) -> ssl.SSLContext:
        problem = ""
        try:
            if self._look() != self._signature:
                self.renew()  # a failure leaves the signature, so that the next handshake tries again
                _log.info("the certificate of %s was read again", self._name)
        except OSError as error:
            problem = reason(error)
        if problem and problem != self._problem:
            _log.error("the certificate of %s cannot be used: %s; the one of before stays", self._name, problem)
        self._problem = problem
        return self._newest

    def _look(self) -> _Signature:
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (path.stat() for path in self._paths))

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._paths, password=_refuse_to_ask)
        self._configure(context)
        return context


def reason(error: OSError) -> str:
    """Why files cannot be used, without OpenSSL's numbers."""
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)


def _refuse_to_ask() -> str:
    """Without it OpenSSL would ask for a pass phrase at the terminal."""
    raise OSError("the private key has a pass phrase")
