"""Writes what known tokens give with a model, by the id of the numerics, for every build that this machine can run.

    python -m scripts.golden.known_digests models/base

Entries of other machines stay, those of other weights go.
It refuses where an id that is there gives another digest: then a kernel has changed
its bits, and its revision (``stratos.engine.revisions``) must say so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stratos.core.files.known_digests import KNOWN_DIGESTS_NAME, read_known_digest
from stratos.core.files.model_files import read_model_files
from stratos.engine.native.isa import cpu_flags, supported_sets
from stratos.engine.runner.torch_runner import DTYPES, TorchRunner
from stratos.engine.settings import RunnerConfig

POOL_BYTES = 1 << 20


def main() -> None:
    """Add the digests of this machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    path = folder / KNOWN_DIGESTS_NAME
    content = json.loads(path.read_text()) if path.exists() else {}
    model_digest = read_model_files(folder).digest
    digests = content["digests"] if content.get("model_digest") == model_digest else {}
    for isa in supported_sets(cpu_flags()):
        for dtype in DTYPES:
            config = RunnerConfig(model_path=folder, native_isa=isa.name, dtype=dtype, kv_pool_bytes=POOL_BYTES)  # type: ignore[arg-type]
            runner = TorchRunner.load(config)
            identity, digest = runner.info.identity, runner.probe()
            numerics = identity.numerics_id
            if read_known_digest(folder, identity) not in (None, digest):
                parser.error(f"{numerics} gave another digest before")
            digests[numerics] = digest.hex()
    content = {"model_digest": model_digest, "digests": dict(sorted(digests.items()))}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
