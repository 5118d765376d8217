"""What a hundred `kill -9` at random moments lose: no finished image, and no job without a word.

Run `python -m benchmarks.faults [KILLS]`. The server's queue, record and files are real; its model computes nothing.
"""

import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import print_table, write_result
from tests.faults.kills import kill_at_random

KILLS = 100


def main() -> None:
    """Kill, print, write."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_at_random(Path(folder) / "data", kills)
    print_table(["counted", ""], [(name.replace("_", " "), str(count)) for name, count in asdict(found).items()])
    write_result("faults", {**asdict(found), "seconds": time.monotonic() - began, "met": found.is_whole})


if __name__ == "__main__":
    main()
