"""``stratos certificates``: the certificates of mTLS, in a folder or in Secrets of a cluster."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest
from stratos.common.tls.identity import InvalidCertificate, PeerRole

if TYPE_CHECKING:
    from stratos.pki.keeper import RunReport
    from stratos.pki.renewal import ValidityPolicy
    from stratos.pki.stores import CertificateStore

certificates_app = typer.Typer(help="Certificates for mTLS between services.", no_args_is_help=True)
FolderOption = Annotated[Path | None, typer.Option(help="Keep them in this folder: ROLE/tls.crt, tls.key, ca.crt.")]
SecretsOption = Annotated[str, typer.Option("--secrets", help="Keep them in Secrets of this prefix: PREFIX-ROLE.")]
NamespaceOption = Annotated[str, typer.Option(help="Of the Secrets; default: that of the pod.")]
ServerOption = Annotated[str, typer.Option("--api-server", help="Default: that of the pod; else `kubectl proxy`.")]
LabelOption = Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE of the Secrets; may be repeated.")]
DomainOption = Annotated[str, typer.Option(help="Name of the platform in its certificates.")]
RoleOption = Annotated[
    list[PeerRole] | None,
    typer.Option("--role", help="May be repeated; default: all, of Secrets but supervisor."),
]
LifetimeOption = Annotated[float, typer.Option(min=0, help="Days that a certificate is valid.")]
CaLifetimeOption = Annotated[float, typer.Option(min=0, help="Days that a CA is valid.")]
DnsNameOption = Annotated[
    list[str] | None, typer.Option("--dns-name", help="ROLE=NAME, one more name in its certificate; may be repeated.")
]
OverlapOption = Annotated[float, typer.Option(min=0, help="Seconds in which every process has read new files.")]


@certificates_app.command("issue")
def issue(
    folder: FolderOption = None,
    secrets: SecretsOption = "",
    namespace: NamespaceOption = "",
    api_server: ServerOption = "",
    label: LabelOption = None,
    domain: DomainOption = "stratos",
    role: RoleOption = None,
    lifetime_days: LifetimeOption = 30,
    ca_lifetime_days: CaLifetimeOption = 1825,
    overlap_s: OverlapOption = 86400,
    dns_name: DnsNameOption = None,
) -> None:
    """Make what is missing, the first CA too, and renew what is due; running it again changes nothing."""
    from stratos.pki.keeper import keep

    with explained_errors():
        store = _store(folder, secrets, namespace, api_server, label)
        policy = _policy(lifetime_days, ca_lifetime_days, overlap_s, dns_name)
        _report(keep(store, domain, _roles(role, secrets), policy, _now()))


@certificates_app.command("renew")
def renew(
    folder: FolderOption = None,
    secrets: SecretsOption = "",
    namespace: NamespaceOption = "",
    api_server: ServerOption = "",
    label: LabelOption = None,
    domain: DomainOption = "stratos",
    role: RoleOption = None,
    lifetime_days: LifetimeOption = 30,
    ca_lifetime_days: CaLifetimeOption = 1825,
    overlap_s: OverlapOption = 86400,
    dns_name: DnsNameOption = None,
    rotate_ca: Annotated[
        bool, typer.Option(help="Announce a new CA; later runs let it sign and drop the old.")
    ] = False,
    reissue: Annotated[bool, typer.Option("--all", help="Renew every certificate, due or not.")] = False,
) -> None:
    """Renew what is due, a CA too; refuses where there is none. Processes take new files without a restart."""
    from stratos.pki.keeper import keep
    from stratos.pki.renewal import RenewalWishes

    with explained_errors():
        store = _store(folder, secrets, namespace, api_server, label)
        policy = _policy(lifetime_days, ca_lifetime_days, overlap_s, dns_name)
        wishes = RenewalWishes(rotate_ca=rotate_ca, reissue=reissue)
        _report(keep(store, domain, _roles(role, secrets), policy, _now(), wishes=wishes, must_exist=True))


@certificates_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder with tls.crt, tls.key and ca.crt, as a pod mounts it.")],
    domain: DomainOption = "stratos",
    role: Annotated[PeerRole | None, typer.Option(help="Role that the certificate must name.")] = None,
    min_days: Annotated[float, typer.Option(min=0, help="Days for which it must still be valid.")] = 0,
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
    from stratos.pki.kubernetes_secrets import SecretStore, cluster_of_pod
    from stratos.pki.stores import FolderStore

    if (folder is None) == (not secrets):
        raise BadRequest("give --folder or --secrets", param="--folder")
    if folder is not None:
        return FolderStore(folder)
    pairs = [label.partition("=") for label in labels or ()]
    if any(not name or not sign for name, sign, _ in pairs):
        raise BadRequest("--label takes NAME=VALUE", param="--label")
    named = {name: value for name, _, value in pairs}
    return SecretStore(cluster_of_pod(secrets, namespace, api_server, named))


def _policy(
    lifetime_days: float, ca_lifetime_days: float, overlap_s: float, dns_names: list[str] | None
) -> ValidityPolicy:
    from stratos.pki.renewal import ValidityPolicy

    return ValidityPolicy(
        lifetime=datetime.timedelta(days=lifetime_days),
        ca_lifetime=datetime.timedelta(days=ca_lifetime_days),
        overlap=datetime.timedelta(seconds=overlap_s),
        dns_names=_dns_names(dns_names or []),
    )


def _dns_names(pairs: list[str]) -> dict[PeerRole, tuple[str, ...]]:
    found: dict[PeerRole, tuple[str, ...]] = {}
    for pair in pairs:
        role, _, name = pair.partition("=")
        if not name or role not in set(PeerRole):
            raise BadRequest("--dns-name takes ROLE=NAME", param="--dns-name")
        found[PeerRole(role)] = (*found.get(PeerRole(role), ()), name)
    return found


def _roles(asked: list[PeerRole] | None, secrets: str) -> list[PeerRole]:
    return asked or [role for role in PeerRole if not secrets or role is not PeerRole.SUPERVISOR]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _report(report: RunReport) -> None:
    typer.echo(f"written: {', '.join(report.written) or 'nothing'}; {report.num_authorities} CA in the bundle")
    typer.echo(f"the next certificate expires at {report.next_expiry.isoformat()}")
