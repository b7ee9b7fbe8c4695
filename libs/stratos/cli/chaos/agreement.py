"""Agreement of an operator with what is going to be broken: what needs none, and how it is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.cli.chaos.kube.release import ReleasePlace

OWN_DATA_DIR = Path(".stratos-chaos")
"""Made to be broken: no client depends on it."""
BREAK_FLAG = "--yes-break-things"


def check_may_break(data_dir: Path, *, is_agreed: bool) -> None:
    """Raise ``BadRequest`` where clients may need what is going to be broken."""
    if not is_agreed and data_dir.resolve() != OWN_DATA_DIR.resolve():
        raise BadRequest(
            f"this kills and stops processes of the platform in {data_dir}, while its clients wait: say {BREAK_FLAG}, "
            f"or start another platform with `stratos up --data-dir {OWN_DATA_DIR}`"
        )


def check_may_break_cluster(place: ReleasePlace, *, is_agreed: bool) -> None:
    """Raise ``BadRequest`` where it was not said: a cluster is never made for this alone."""
    if not is_agreed:
        raise BadRequest(
            f"this kills and stops pods of the release {place.release} in {place.namespace}, while its clients wait: "
            f"say {BREAK_FLAG}"
        )


def check_may_take(store: Path, data_dir: Path, *, is_agreed: bool) -> None:
    """Raise ``BadRequest`` where other platforms may need an object store that is going to be away."""
    if not is_agreed and not store.resolve().is_relative_to(data_dir.resolve()):
        raise BadRequest(f"the object store {store} lies outside {data_dir}, so others may need it: say {BREAK_FLAG}")
