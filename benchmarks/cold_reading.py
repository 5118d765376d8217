"""Reading a checkpoint that is not in the page cache: by one thread through a mapping, by several readers with large
blocks, and asked for ahead of its use.

Run `python -m benchmarks.cold_reading [--file FILE] [--mb N] [--turns N]` (Linux). A file of random bytes is written
where none is named; before each turn the system is told to forget it, and that it did is checked. The ways take turns
in one process, in another order each time (disks that are lent out have bursts), and each is given as its time over
that of `one reader, 1 MB`, the median of the turns.
"""

import argparse
import mmap
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.loading import forget
from benchmarks.report import print_table, write_result

MB = 1 << 20
PAGE = 4096
FIRST = "one reader, 1 MB"


def is_cached(handle: int, begin: int) -> bool:
    """Whether this byte of a file can be had without waiting for the disk."""
    try:
        return bool(os.preadv(handle, [bytearray(1)], begin, os.RWF_NOWAIT))
    except BlockingIOError:
        return False


def cached_share(handle: int, size: int) -> float:
    """The share of a file's blocks of 1 MB of which the first byte is in the page cache."""
    return statistics.mean(is_cached(handle, begin) for begin in range(0, size, MB))


def by_mapping(handle: int, size: int) -> None:
    """One byte of each page, in order."""
    with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as pages:
        sum(pages[::PAGE])


def by_readers(count: int, block: int) -> Callable[[int, int], None]:
    """So many threads that take the next block in turn."""

    def read(handle: int, size: int) -> None:
        begins = iter(range(0, size, block))
        lock = threading.Lock()

        def work() -> None:
            buffer = bytearray(block)
            while True:
                with lock:
                    begin = next(begins, None)
                if begin is None:
                    return
                os.preadv(handle, [memoryview(buffer)[: min(block, size - begin)]], begin)

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return read


def asked_ahead(block: int) -> Callable[[int, int], None]:
    """One reader of 1 MB, while another thread asks the system for `block` bytes after the other."""

    def read(handle: int, size: int) -> None:
        def ask() -> None:
            for begin in range(0, size, block):
                os.posix_fadvise(handle, begin, block, os.POSIX_FADV_WILLNEED)

        thread = threading.Thread(target=ask)
        thread.start()
        by_readers(1, MB)(handle, size)
        thread.join()

    return read


WAYS: dict[str, Callable[[int, int], None]] = {
    FIRST: by_readers(1, MB),
    "mapping, one thread": by_mapping,
    "one reader, 16 MB": by_readers(1, 16 * MB),
    "two readers, 1 MB": by_readers(2, MB),
    "two readers, 16 MB": by_readers(2, 16 * MB),
    "four readers, 16 MB": by_readers(4, 16 * MB),
    "one reader, 1 MB, asked for 16 MB at a time": asked_ahead(16 * MB),
}


def measure(path: Path, size: int, turns: int) -> dict[str, dict[str, float]]:
    """By way: time over the first's, and the best MB/s."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    order = random.Random(0)
    for _ in range(turns):
        for name, read in order.sample(list(WAYS.items()), len(WAYS)):
            forget(path)
            handle = os.open(path, os.O_RDONLY)
            try:
                share = cached_share(handle, size)
                if share > 0.02:
                    raise SystemExit(f"{share:.0%} of {path.name} is still in the page cache: nothing can be measured.")
                forget(path)  # what the check has read
                began = time.perf_counter()
                read(handle, size)
                seconds[name].append(time.perf_counter() - began)
            finally:
                os.close(handle)
    return {
        name: {
            "over the first": statistics.median(a / b for a, b in zip(own, seconds[FIRST], strict=True)),
            "MB/s": size / MB / min(own),
        }
        for name, own in seconds.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", type=Path)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--note", default="", help="kept in the JSON: what else ran")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "random.bin"
        if options.file is None:
            with path.open("wb") as file:
                for _ in range(options.mb):
                    file.write(os.urandom(MB))
        size = min(options.mb * MB, path.stat().st_size)
        found = measure(path, size, options.turns)
    write_result("cold_reading", {"mb": size // MB, "turns": options.turns, "note": options.note, "ways": found})
    rows = [[name, f"{r['over the first']:.2f}", f"{r['MB/s']:.0f}"] for name, r in found.items()]
    print_table(["way", f"time over {FIRST}", "best MB/s"], rows)


if __name__ == "__main__":
    main()
