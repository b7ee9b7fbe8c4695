"""Process of one row: measures it, and writes its document.

python -m stratos.reproduce continuous-batching --form short --seed 0 --out row.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from stratos.reproduce.catalogue import find_row
from stratos.reproduce.measuring import measure_row
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.rpc.serving.parent import end_with_parent


def main() -> None:
    """Parse, measure, write; ends what it started also where the command that began it is killed."""
    end_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the row was stopped"))
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
