"""``stratos admin``, what jobs and pods of a release in a cluster run: its credentials, and its object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.cli.commands.certificates import NamespaceOption, ServerOption, secret_store
from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.pki.kubernetes_secrets import SecretStore

SecretOption = Annotated[str, typer.Option("--secret", help="Name of the Secret, with a hyphen.")]
MIN_KEY_CHARS = 16


def add_cluster_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("make-credentials")(make_credentials)
    app.command("remove-credentials")(remove_credentials)
    app.command("serve-objects")(serve_objects)


def make_credentials(
    secret: SecretOption,
    make: Annotated[list[str], typer.Option(help="Key of the Secret to make where it is missing; may be repeated.")],
    namespace: NamespaceOption = "",
    api_server: ServerOption = "",
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the Secret; may be repeated.")] = None,
) -> None:
    """Make a Secret with random credentials in a cluster; what is there stays, so running it again changes nothing."""
    from stratos.cli.cluster.credentials import complete_credentials

    with explained_errors():
        store, name = _document(secret, namespace, api_server, label)
        made = complete_credentials(store, name, make)
        typer.echo(f"{secret}: made {', '.join(made) or 'nothing'}")


def remove_credentials(secret: SecretOption, namespace: NamespaceOption = "", api_server: ServerOption = "") -> None:
    """Delete that Secret: API keys and sealed data of the release are of no use afterwards."""
    with explained_errors():
        store, name = _document(secret, namespace, api_server, None)
        store.remove(name)
        typer.echo(f"{secret} is removed")


def serve_objects(
    folder: Annotated[Path, typer.Option(help="Folder with the objects; made where it is missing.")],
    key: Annotated[str, typer.Option(envvar="STRATOS_OBJECT_STORE_KEY", help="Secret of the key `stratos`.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT.")] = "0.0.0.0:9300",
    bucket: Annotated[str, typer.Option(help="Name of the one bucket.")] = "stratos",
) -> None:
    """Serve a folder as the S3 bucket of an evaluation, until SIGTERM."""
    import signal
    import tempfile
    import threading

    from stratos.store.local_store import LocalStore
    from stratos.store.served.server import ObjectServer

    host, _, port = listen.rpartition(":")
    with explained_errors():
        if len(key) < MIN_KEY_CHARS:
            raise BadRequest(f"the key must have at least {MIN_KEY_CHARS} characters", param="--key")
        if not port.isdigit():
            raise BadRequest("give HOST:PORT", param="--listen")
    folder.mkdir(parents=True, exist_ok=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # in the threads to come, too
    with tempfile.TemporaryDirectory() as scratch:
        server = ObjectServer((host, int(port)), LocalStore(folder), bucket, key, Path(scratch))
        thread = threading.Thread(target=server.serve_forever, name="objects")
        thread.start()
        typer.echo(f"serving {folder} as s3://{bucket} on {listen}")
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        server.shutdown()
        thread.join()
        server.server_close()


def _document(secret: str, namespace: str, api_server: str, label: list[str] | None) -> tuple[SecretStore, str]:
    """The store that has the Secret, and its name in it."""
    prefix, hyphen, name = secret.rpartition("-")
    if not (prefix and hyphen and name):
        raise BadRequest("the name of the Secret must have a hyphen, such as RELEASE-credentials", param="--secret")
    return secret_store(prefix, namespace, api_server, label), name
