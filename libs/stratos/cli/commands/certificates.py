"""``stratos certificates``: the certificates of mTLS, in a folder or in Secrets of a cluster."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest
from stratos.common.tls.identity import InvalidCertificate, PeerRole

if TYPE_CHECKING:
    from stratos.pki.kubernetes_secrets import SecretStore
    from stratos.pki.renewal import ValidityPolicy
    from stratos.pki.stores import CertificateStore

certificates_app = typer.Typer(help="Certificates for mTLS between services.", no_args_is_help=True)
SecretsOption = Annotated[str, Option("--secrets", help="Keep them in Secrets of this prefix: PREFIX-ROLE.")]
NamespaceOption = Annotated[str, Option(help="Of the Secrets; default: that of the pod.")]
ServerOption = Annotated[str, Option("--api-server", help="Default: that of the pod; else `kubectl proxy`.")]
DomainOption = Annotated[str, Option(help="Name of the platform in its certificates.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueOptions:
    """Certificates to make: where they are kept, whose they are, and how long they are valid."""

    folder: Annotated[Path | None, Option(help="Keep them in this folder: ROLE/tls.crt, tls.key, ca.crt.")] = None
    secrets: SecretsOption = ""
    namespace: NamespaceOption = ""
    api_server: ServerOption = ""
    label: Annotated[list[str] | None, Option(help="NAME=VALUE of the Secrets; may be repeated.")] = None
    domain: DomainOption = "stratos"
    role: Annotated[list[PeerRole] | None, Option(help="May be repeated; default: all, of Secrets but supervisor.")] = (
        None
    )
    lifetime_days: Annotated[float, Option(min=0, help="Days that a certificate is valid.")] = 30
    ca_lifetime_days: Annotated[float, Option(min=0, help="Days that a CA is valid.")] = 1825
    overlap_s: Annotated[float, Option(min=0, help="Seconds in which every process has read new files.")] = 86400
    dns_name: Annotated[
        list[str] | None, Option(help="ROLE=NAME, one more name in its certificate; may be repeated.")
    ] = None

    def run(self, **more: Any) -> None:
        """Keep the certificates, and print what was written; ``more`` goes to ``keep``."""
        from stratos.pki.keeper import keep

        store = _store(self.folder, self.secrets, self.namespace, self.api_server, self.label)
        now = datetime.datetime.now(datetime.UTC)
        report = keep(store, self.domain, self._roles(), self._policy(), now, **more)
        typer.echo(f"written: {', '.join(report.written) or 'nothing'}; {report.num_authorities} CA in the bundle")
        typer.echo(f"the next certificate expires at {report.next_expiry.isoformat()}")

    def _policy(self) -> ValidityPolicy:
        from stratos.pki.renewal import ValidityPolicy

        return ValidityPolicy(
            lifetime=datetime.timedelta(days=self.lifetime_days),
            ca_lifetime=datetime.timedelta(days=self.ca_lifetime_days),
            overlap=datetime.timedelta(seconds=self.overlap_s),
            dns_names=_dns_names(self.dns_name or []),
        )

    def _roles(self) -> list[PeerRole]:
        return self.role or [role for role in PeerRole if not self.secrets or role is not PeerRole.SUPERVISOR]


@certificates_app.command("issue")
@with_flags_of(IssueOptions)
def issue(*, make: Callable[..., IssueOptions]) -> None:
    """Make what is missing, the first CA too, and renew what is due; running it again changes nothing."""
    with explained_errors():
        make().run()


@certificates_app.command("renew")
@with_flags_of(IssueOptions)
def renew(
    *,
    make: Callable[..., IssueOptions],
    rotate_ca: Annotated[bool, Option(help="Announce a new CA; later runs let it sign and drop the old.")] = False,
    reissue: Annotated[bool, Option("--all", help="Renew every certificate, due or not.")] = False,
) -> None:
    """Renew what is due, a CA too; refuses where there is none. Processes take new files without a restart."""
    from stratos.pki.renewal import RenewalWishes

    with explained_errors():
        make().run(wishes=RenewalWishes(rotate_ca=rotate_ca, reissue=reissue), must_exist=True)


@certificates_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder with tls.crt, tls.key and ca.crt, as a pod mounts it.")],
    domain: DomainOption = "stratos",
    role: Annotated[PeerRole | None, Option(help="Role that the certificate must name.")] = None,
    min_days: Annotated[float, Option(min=0, help="Days for which it must still be valid.")] = 0,
) -> None:
    """Say whether a process would start with these files and its peers accept it; if not, exit code 1 and why."""
    from stratos.pki.audit import check_files
    from stratos.pki.local import role_config

    config = role_config(folder, domain)
    with explained_errors():
        try:
            typer.echo(check_files(config, role, datetime.timedelta(days=min_days)))
        except InvalidCertificate as error:
            raise BadRequest(f"{error}") from None


@certificates_app.command("remove")
def remove(
    secrets: SecretsOption,
    namespace: NamespaceOption = "",
    api_server: ServerOption = "",
) -> None:
    """Delete the Secrets that `issue` made, CA and all: the end of an installation."""
    from stratos.pki.keeper import CA_DOCUMENT

    with explained_errors():
        store = _store(None, secrets, namespace, api_server, None)
        for name in (*PeerRole, CA_DOCUMENT):
            store.remove(name)
    typer.echo(f"the Secrets {secrets}-* are removed")


def _store(
    folder: Path | None, secrets: str, namespace: str, api_server: str, labels: list[str] | None
) -> CertificateStore:
    from stratos.pki.stores import FolderStore

    if (folder is None) == (not secrets):
        raise BadRequest("give --folder or --secrets", param="--folder")
    if folder is not None:
        return FolderStore(folder)
    return secret_store(secrets, namespace, api_server, labels)


def secret_store(prefix: str, namespace: str, api_server: str, labels: list[str] | None) -> SecretStore:
    """Secrets of a cluster, by the end of their name.

    Raises:
        BadRequest: a label without its value.
        DependencyDown: no cluster is known.
    """
    from stratos.pki.kubernetes_secrets import SecretStore, cluster_of_pod

    pairs = [label.partition("=") for label in labels or ()]
    if any(not name or not sign for name, sign, _ in pairs):
        raise BadRequest("--label takes NAME=VALUE", param="--label")
    named = {name: value for name, _, value in pairs}
    return SecretStore(cluster_of_pod(prefix, namespace, api_server, named))


def _dns_names(pairs: list[str]) -> dict[PeerRole, tuple[str, ...]]:
    found: dict[PeerRole, tuple[str, ...]] = {}
    for pair in pairs:
        role, _, name = pair.partition("=")
        if not name or role not in set(PeerRole):
            raise BadRequest("--dns-name takes ROLE=NAME", param="--dns-name")
        found[PeerRole(role)] = (*found.get(PeerRole(role), ()), name)
    return found
