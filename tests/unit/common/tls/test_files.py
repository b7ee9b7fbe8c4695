"""What a process accepts as its certificate, and what it goes on with when the files are changed."""

from __future__ import annotations

import dataclasses
import errno
import ssl
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.files import TlsFiles, read_material
from stratos.common.tls.identity import Identity, InvalidCertificate, PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.pki.authority import issue
from stratos.pki.renewal import RenewalWishes
from tests.support.servers.certificates import CertificateFolder


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    return CertificateFolder(tmp_path / "tls")


def write(
    config: TlsConfig, *, certificate: bytes | None = None, key: bytes | None = None, ca: bytes | None = None
) -> None:
    for path, content in ((config.certificate_path, certificate), (config.key_path, key), (config.ca_path, ca)):
        if content is not None:
            path.write_bytes(content)


def other(config: TlsConfig) -> bytes:
    """The certificate of another role."""
    return (config.certificate_path.parents[1] / PeerRole.ADMIN / "tls.crt").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda c: c.key_path.unlink(), "cannot read .*tls.key"),
        (lambda c: write(c, certificate=b"nothing"), "tls.crt holds no PEM certificate"),
        (lambda c: write(c, key=b"nothing"), "tls.key holds no PEM private key"),
        (lambda c: write(c, ca=b""), "ca.crt holds no PEM certificate"),
        (lambda c: write(c, certificate=other(c)), "tls.key is not the key of"),
        (lambda c: write(c, certificate=c.ca_path.read_bytes()), "names no role"),
    ],
)
def test_files_that_cannot_be_used(folder: CertificateFolder, spoil: Callable[[TlsConfig], None], reason: str) -> None:
    config = folder.config(PeerRole.ROUTER)
    files = TlsFiles(config)
    before = files.current()
    spoil(config)
    with pytest.raises(InvalidCertificate, match=reason):
        read_material(config)
    assert files.current() is before
    with pytest.raises(InvalidCertificate, match=reason):
        TlsFiles(config)


def test_another_platform_and_an_expired_certificate(folder: CertificateFolder) -> None:
    config = folder.config(PeerRole.ROUTER)
    with pytest.raises(InvalidCertificate, match="of the platform 'stratos', not 'elsewhere'"):
        TlsFiles(dataclasses.replace(config, domain="elsewhere"))
    authority = folder.authorities()[-1].pair
    expired = issue(authority, Identity("stratos", PeerRole.ROUTER), folder.pause, folder.now - folder.pause * 2)
    write(config, certificate=expired.certificate, key=expired.key)
    with pytest.raises(InvalidCertificate, match="has expired"):
        TlsFiles(config)


def test_new_files_are_taken_and_old_objects_kept_until_then(folder: CertificateFolder) -> None:
    files = folder.files(PeerRole.ROUTER)
    contexts = TlsContexts(files)
    before, client, server = files.current(), contexts.client(), contexts.server()
    assert files.current() is before
    assert (contexts.client(), contexts.server()) == (client, server)
    folder.run(RenewalWishes(reissue=True))
    after = files.current()
    assert after.certificate != before.certificate
    assert after.identity == before.identity == Identity("stratos", PeerRole.ROUTER)
    assert contexts.client() is not client
    assert contexts.server() is not server
    assert contexts.server().verify_mode is contexts.client().verify_mode is ssl.CERT_REQUIRED
    assert contexts.server().minimum_version is ssl.TLSVersion.TLSv1_3


def test_new_files_that_could_not_be_read_once_are_read_again(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has no file descriptor left at that moment: the certificate of before ends some day."""
    files = folder.files(PeerRole.ROUTER)
    before = files.current()
    folder.run(RenewalWishes(reissue=True))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert files.current() is before
    assert files.current().certificate == files.config.certificate_path.read_bytes() != before.certificate
