"""Digests of what known tokens give, by the id of the numerics: a file in the folder of a model that we ship.

    {"model_digest": "8a36...", "digests": {"cpu/float32/native-amx.r1+...+exact": "0123..."}}

Equal ids promise equal bits for equal weights, so a worker that computes another digest is wrong.  The file says
nothing of other weights that lie beside it, as in a changed copy of the folder.  Most models have no such file.
"""

from __future__ import annotations

from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.core.kv import KvIdentity

KNOWN_DIGESTS_NAME = "known_digests.json"


def read_known_digest(folder: Path | None, identity: KvIdentity) -> bytes | None:
    """The digest that the folder names for these weights and numerics; ``None`` where it names none.

    Raises:
        InvalidCheckpoint: the file says something senseless.
    """
    if folder is None or not (folder / KNOWN_DIGESTS_NAME).exists():
        return None
    path = folder / KNOWN_DIGESTS_NAME
    content = read_json(path)
    digests = content.get("digests")
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise InvalidCheckpoint(f"{path}: digests must be an object of digests by the id of the numerics")
    if content.get("model_digest") != identity.model_digest:
        return None
    try:
        return bytes.fromhex(digests[identity.numerics_id]) if identity.numerics_id in digests else None
    except ValueError:
        raise InvalidCheckpoint(f"{path}: the digest of {identity.numerics_id} is not hexadecimal") from None
