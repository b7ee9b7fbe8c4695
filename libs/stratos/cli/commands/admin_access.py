"""Options of the commands that call an admin API: that of the running platform, or one at a given address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.common.tls.settings import TlsConfig
    from stratos.rpc.clients.admin import AdminClient

UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="STRATOS_ADMIN_URL", help="Of an admin port; default: the running platform's."),
]
KeyOption = Annotated[
    str,
    typer.Option(
        "--key", envvar="STRATOS_ADMIN_KEY", help="Key or token of the role admin, or of tenant-admin for its own."
    ),
]
_NO_KEY = "give --key or STRATOS_ADMIN_KEY; `stratos keys create --tenant platform --role admin` makes one"


@contextmanager
def admin_client(url: str, key: str, data_dir: Path, run: str) -> Iterator[AdminClient]:
    """A client of the admin API at ``url``, or of the running platform's where it is empty.

    Raises:
        BadRequest: there is no key.
        NotFound: neither a URL nor a running platform.
    """
    from stratos.cli.local.running import find_platform
    from stratos.rpc.clients.admin import AdminClient

    if not key:
        raise BadRequest(_NO_KEY, param="--key")
    with closing(AdminClient(url or find_platform(data_dir, run).admin_url, key, _mesh())) as client:
        yield client


def _mesh() -> TlsConfig | None:
    """Certificates of the platform, where the chart's tools have them."""
    from stratos.pki.local import role_config

    folder = os.environ.get("STRATOS_TLS_FOLDER")
    return role_config(Path(folder), os.environ.get("STRATOS_TLS_DOMAIN", "stratos")) if folder else None
