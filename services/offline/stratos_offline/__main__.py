"""``python -m stratos_offline OPTIONS``: the driver of one job, whose options are JSON."""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from stratos.common.errors import StratosError
from stratos.rpc.log import configure_logging
from stratos_offline.job import Job, JobProgress, OpenPool
from stratos_offline.options import JobOptions
from stratos_offline.pools.local import LocalPool

SALT_ENV = "STRATOS_OFFLINE_SALT"
"""Cache salt of a tenant: a secret, so it is no argument."""
_WIDTH = 30


def main() -> int:
    """Run the job; 1 where it could not end, and can be begun again."""
    configure_logging("offline", "console", "WARNING")
    try:
        options = JobOptions.parse(sys.argv[1], salt=os.environ.get(SALT_ENV, ""))
        Job(options, pool_of(options), int(time.time()), show).run()
    except StratosError as error:
        print(f"\nerror: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nerror: {error}; what was computed is kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nwhat was computed is kept; the same command goes on with it", file=sys.stderr)
        return 130
    return 0


def pool_of(options: JobOptions) -> OpenPool:
    """Processes of this machine, or a cluster."""
    if not options.ray:
        return partial(LocalPool, num_engines=options.max_engines)
    from stratos_offline.cluster.connection import open_pool

    return partial(open_pool, options=options)


def show(progress: JobProgress) -> None:
    """Draw the bar."""
    filled = _WIDTH * progress.num_done // max(1, progress.num_lines)
    failed = f", {progress.num_failed} failed" if progress.num_failed else ""
    kept = f", {progress.num_kept_blocks} blocks from before" if progress.num_kept_blocks else ""
    bar = "#" * filled + "." * (_WIDTH - filled)
    end = "\n" if progress.is_over else ""
    print(
        f"\r[{bar}] {progress.num_done}/{progress.num_lines} lines{failed}{kept}", end=end, file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
