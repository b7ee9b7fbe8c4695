"""Writes the CycloneDX list of what an image holds, from its root: Python packages, Debian packages, or else its files.

``cyclonedx-py`` reads the Python environment; Debian's packages come from dpkg's database. An image that has none is a
bare one, whose files are listed with their digests. The result is checked against CycloneDX's own schema.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ENVIRONMENT = "opt/stratos/bin/python"
DPKG_STATUS = "var/lib/dpkg/status"
SPEC = "1.6"


def python_packages(root: Path) -> dict[str, Any]:
    """The list of the image's Python environment, as cyclonedx-py makes it; an empty one where there is none."""
    if not (root / ENVIRONMENT).exists():
        return {"$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json", "bomFormat": "CycloneDX",
                "specVersion": SPEC, "version": 1, "metadata": {}, "components": []}  # fmt: skip
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = [tool, "environment", "--output-reproducible", "--spec-version", SPEC, root / ENVIRONMENT]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def debian_packages(status: str) -> Iterator[dict[str, Any]]:
    """Components of the installed packages in the text of dpkg's status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = (
                f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={fields['Architecture']}"
            )
            yield {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def files(root: Path) -> Iterator[dict[str, Any]]:
    """Components of the regular files below ``root``."""
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        name, digest = f"/{path.relative_to(root)}", hashlib.sha256(path.read_bytes()).hexdigest()
        yield {"type": "file", "name": name, "bom-ref": name, "hashes": [{"alg": "SHA-256", "content": digest}]}


def bill_of_materials(root: Path, image: str, version: str) -> dict[str, Any]:
    """All that the image holds, as a CycloneDX document."""
    bom = python_packages(root)
    status = root / DPKG_STATUS
    bom["components"] += debian_packages(status.read_text()) if status.exists() else files(root)
    bom["components"].sort(key=lambda component: component["bom-ref"])
    bom["metadata"]["component"] = {"type": "container", "name": image, "version": version, "bom-ref": image}
    return bom


def main() -> int:
    """Write the list; the exit code is 1 when it does not fit the schema."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="where the image's root is mounted")
    parser.add_argument("--image", required=True, help="name:tag of the image")
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder; the file is NAME.cdx.json")
    args = parser.parse_args()
    text = json.dumps(bill_of_materials(args.root, args.image, args.version), indent=1) + "\n"
    if error := JsonStrictValidator(SchemaVersion.from_version(SPEC)).validate_str(text):
        print(f"not a CycloneDX {SPEC} document: {error}", file=sys.stderr)
        return 1
    name = args.image.rpartition("/")[2].partition(":")[0]
    (args.out / f"{name}.cdx.json").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
