"""How soon a warm start answers, alongside the time that importing torch and gradio takes alone.

Run `python -m benchmarks.start`. Both are started in turn, several times; the ratio of the medians counts.
"""

import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
RUNS = 5
GOAL = 1.6
LIMIT_S = 180


def import_seconds() -> float:
    """A process that imports torch and gradio, from start to end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, gradio"], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def start_seconds() -> float:
    """From starting `launch.py` in a prepared environment to the page's first answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as data:
        words = ["--port", str(port), "--data-dir", data, "--skip-install"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "launch.py", *words],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while time.perf_counter() - began < LIMIT_S:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                        return time.perf_counter() - began
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.02)
            raise TimeoutError(f"no answer within {LIMIT_S} s")
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, print, write."""
    import_seconds()
    start_seconds()  # both warm now
    pairs = [(import_seconds(), start_seconds()) for _ in range(RUNS)]
    imports, starts = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(start / imported for imported, start in pairs)
    print_table(
        ["", "seconds (median)"],
        [("import torch, gradio", f"{imports:.2f}"), ("page answers", f"{starts:.2f}"), ("ratio", f"{ratio:.2f}")],
    )
    write_result(
        "start",
        {"import_s": imports, "page_s": starts, "ratio": ratio, "goal": GOAL, "met": ratio <= GOAL, "runs": RUNS},
    )


if __name__ == "__main__":
    main()
