"""Process of one row: measures it, and writes its document.

python -m stratos.reproduce continuous-batching --form short --seed 0 --out row.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stratos.reproduce.catalogue import find_row
from stratos.reproduce.measuring import measure_row
from stratos.reproduce.record.conditions import RowConditions, RowForm


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("--form", type=RowForm, default=RowForm.SHORT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = vars(parser.parse_args())
    row, out = find_row(args.pop("row")), args.pop("out")
    document = measure_row(row, RowConditions(**args))
    out.write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
