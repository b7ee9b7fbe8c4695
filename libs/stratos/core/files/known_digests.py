"""Digests of what known tokens give, by the id of the numerics: a file in the folder of a model that we ship.

    {"digests": {"cpu/float32/native-amx.r1+...+exact": "0123..."}}

Equal ids promise equal bits, so a worker that computes another digest is wrong.  Most models have no such file.
"""

from __future__ import annotations

from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json

KNOWN_DIGESTS_NAME = "known_digests.json"


def read_known_digest(folder: Path | None, numerics_id: str) -> bytes | None:
    """The digest that the folder names for this id; ``None`` where it names none.

    Raises:
        InvalidCheckpoint: the file says something senseless.
    """
    if folder is None or not (folder / KNOWN_DIGESTS_NAME).exists():
        return None
    path = folder / KNOWN_DIGESTS_NAME
    digests = read_json(path).get("digests")
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise InvalidCheckpoint(f"{path}: digests must be an object of digests by the id of the numerics")
    try:
        return bytes.fromhex(digests[numerics_id]) if numerics_id in digests else None
    except ValueError:
        raise InvalidCheckpoint(f"{path}: the digest of {numerics_id} is not hexadecimal") from None
