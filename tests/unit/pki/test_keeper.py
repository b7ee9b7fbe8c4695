"""Runs over a folder and over the Secrets of a small API server: what is written, and who is refused."""

from __future__ import annotations

import base64
import datetime
import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.common.errors import BadRequest, DependencyDown, NotFound, Overloaded, PermissionDenied
from stratos.common.tls.identity import PeerRole
from stratos.pki.keeper import RunReport, keep
from stratos.pki.kubernetes_secrets import Cluster, SecretStore
from stratos.pki.renewal import RenewalWishes, ValidityPolicy
from stratos.pki.stores import CertificateStore, FolderStore

NOW = datetime.datetime.now(datetime.UTC)
ROLES = [PeerRole.GATEWAY, PeerRole.ROUTER]
POLICY = ValidityPolicy(overlap=datetime.timedelta(hours=1))


class ApiServer(ThreadingHTTPServer):
    """Secrets of one namespace, with versions, as an API server keeps them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SecretHandler)
        self.secrets: dict[str, dict[str, Any]] = {}
        self.token = "right"
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def store(self, *, token: str = "right") -> SecretStore:
        return SecretStore(
            Cluster(url=self.url, namespace="ns", prefix="rel-tls", token=token, labels={"release": "rel"})
        )


class _SecretHandler(BaseHTTPRequestHandler):
    server: ApiServer

    def _handle(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.headers["Authorization"] != (f"Bearer {self.server.token}" if self.server.token else None):
            return self._answer(403, {"message": "the role lacks the verb"})
        _, _, name = self.path.removeprefix("/api/v1/namespaces/ns/secrets").partition("/")
        name, known = name or body["metadata"]["name"], self.server.secrets
        held = known.get(name)
        if self.command == "POST" and held is not None:
            return self._answer(409, {})
        if self.command != "POST" and held is None:
            return self._answer(404, {})
        if self.command in ("POST", "PUT"):
            version = held["metadata"]["resourceVersion"] if held else "0"
            if held and body["metadata"]["resourceVersion"] != version:
                return self._answer(409, {})
            known[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(int(version) + 1)}}
        if self.command == "DELETE":
            return self._answer(200, known.pop(name))
        return self._answer(200, known[name])

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["folder", "secrets"])
def store(request: pytest.FixtureRequest, tmp_path: Path, api: ApiServer) -> CertificateStore:
    return FolderStore(tmp_path / "tls") if request.param == "folder" else api.store()


def run(store: CertificateStore, hours: float = 0, **options: Any) -> RunReport:
    return keep(store, "prod", ROLES, POLICY, NOW + datetime.timedelta(hours=hours), **options)


def test_a_second_run_changes_nothing(store: CertificateStore) -> None:
    assert run(store).written == ("ca", "gateway", "router")
    before = {name: store.read(name) for name in ("ca", *ROLES)}
    assert set(before["gateway"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert b"PRIVATE KEY" not in before["ca"]["ca.crt"]
    assert run(store, 1).written == ()
    assert {name: store.read(name) for name in ("ca", *ROLES)} == before


def test_every_role_is_told_of_a_new_ca_before_it_signs(store: CertificateStore) -> None:
    run(store)
    old = store.read("gateway")
    assert run(store, 1, wishes=RenewalWishes(rotate_ca=True)).written == ("ca", "gateway", "router")
    announced = store.read("gateway")
    assert announced["tls.crt"] == old["tls.crt"]
    assert announced["ca.crt"].count(b"BEGIN") == 2
    assert announced["ca.crt"].startswith(old["ca.crt"])
    run(store, 2)
    assert store.read("gateway")["tls.crt"] != old["tls.crt"]
    assert run(store, 3).num_authorities == 1
    assert store.read("router")["ca.crt"].count(b"BEGIN") == 1


def test_renewal_makes_no_first_ca(store: CertificateStore) -> None:
    with pytest.raises(NotFound, match="no CA here"):
        run(store, must_exist=True)
    assert store.read("gateway") == {}


def test_what_cannot_be_read_is_not_replaced(store: CertificateStore) -> None:
    run(store)
    store.write("ca", {"authorities.json": b"[{}]"})
    with pytest.raises(BadRequest, match="cannot be read"):
        run(store)
    with pytest.raises(BadRequest, match="is no domain"):
        keep(store, "Prod/1", ROLES, POLICY, NOW)


def test_removal(store: CertificateStore) -> None:
    run(store)
    for name in ("ca", *ROLES, "never-there"):
        store.remove(name)
    assert store.read("ca") == store.read("gateway") == {}


def test_files_are_private(tmp_path: Path) -> None:
    run(FolderStore(tmp_path / "tls"))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "tls" / "gateway").stat().st_mode) == 0o700


def test_of_two_runs_at_once_the_later_one_gives_way(api: ApiServer) -> None:
    run(api.store())
    mine, other = api.store(), api.store()
    assert mine.read("ca")
    other.read("ca")
    run(other, 1, wishes=RenewalWishes(rotate_ca=True))
    with pytest.raises(Overloaded, match="another run"):
        mine.write("ca", {"authorities.json": b"[]"})
    api.secrets.clear()
    first, second = api.store(), api.store()
    second.read("ca")
    run(first)
    with pytest.raises(Overloaded, match="another run"):
        second.write("ca", {})


def test_secrets_carry_names_and_labels(api: ApiServer) -> None:
    run(api.store())
    assert set(api.secrets) == {"rel-tls-ca", "rel-tls-gateway", "rel-tls-router"}
    assert api.secrets["rel-tls-router"]["metadata"]["labels"] == {"release": "rel"}
    assert base64.b64decode(api.secrets["rel-tls-router"]["data"]["tls.crt"]).startswith(b"-----BEGIN CERT")


def test_what_others_wrote_into_a_secret_stays(api: ApiServer) -> None:
    annotations = {"meta.helm.sh/release-name": "rel"}
    metadata = {"name": "rel-tls-router", "annotations": annotations, "labels": {"app": "x"}, "resourceVersion": "7"}
    api.secrets["rel-tls-router"] = {"metadata": metadata, "type": "kubernetes.io/tls"}
    assert run(api.store()).written == ("ca", "gateway", "router")
    made = api.secrets["rel-tls-router"]
    assert (made["type"], made["metadata"]["annotations"]) == ("kubernetes.io/tls", annotations)
    assert made["metadata"]["labels"] == {"app": "x", "release": "rel"}
    assert set(made["data"]) == {"tls.crt", "tls.key", "ca.crt"}


def test_refusals_of_the_api_server(api: ApiServer) -> None:
    with pytest.raises(PermissionDenied, match="lacks the verb"):
        run(api.store(token="wrong"))
    nowhere = SecretStore(Cluster(url="http://127.0.0.1:9", namespace="ns", prefix="rel-tls"))
    with pytest.raises(DependencyDown, match="does not answer"):
        run(nowhere)


def test_the_command(tmp_path: Path, api: ApiServer) -> None:
    def stratos(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["certificates", *arguments])
        return result.exit_code, result.output

    folder = str(tmp_path / "tls")
    assert stratos("renew", "--folder", folder)[0] == 1
    assert stratos("issue", "--folder", folder, "--domain", "a.b")[0] == 0
    code, text = stratos("check", f"{folder}/admin", "--domain", "a.b", "--role", "admin", "--min-days", "20")
    assert (code, text.startswith("spiffe://stratosserve/a.b/admin is in order")) == (0, True)
    for wrong, reason in (
        (("--domain", "b"), "of the platform 'a.b'"),
        (("--domain", "a.b", "--role", "router"), "of the role admin"),
        (("--domain", "a.b", "--min-days", "40"), "expires soon"),
    ):
        code, text = stratos("check", f"{folder}/admin", *wrong)
        assert code == 1
        assert reason in text
    (tmp_path / "tls/admin/ca.crt").write_bytes((tmp_path / "tls/admin/tls.crt").read_bytes())
    assert "no CA in" in stratos("check", f"{folder}/admin", "--domain", "a.b")[1]

    api.token = ""  # as `kubectl proxy`, which brings its own
    cluster = ("--secrets", "rel-tls", "--api-server", api.url, "--namespace", "ns")
    assert stratos("issue", *cluster, "--label", "oops")[0] == 1
    assert stratos("issue", "--folder", folder, "--secrets", "x")[0] == 1
    assert stratos("issue", *cluster, "--domain", "a.b", "--label", "app=stratos")[0] == 0
    assert "rel-tls-admin" in api.secrets
    assert "rel-tls-supervisor" not in api.secrets
    assert "written: nothing" in stratos("renew", *cluster, "--domain", "a.b")[1]
    assert stratos("remove", *cluster)[0] == 0
    assert api.secrets == {}
