"""What a server with 10,000 waiting jobs costs: submitting over HTTP, the page's questions, the end, the next start.

Part of `python -m benchmarks.faults`; alone `python -m benchmarks.long_line [JOBS]`. The server is a process of its
own, its record is on disk, its model computes nothing and the line is paused. Seconds are those of a clock.
"""

import json
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import print_table, read_result, write_result
from tests.faults.server import TinyServer

JOBS, CLIENTS = 10_000, 4
BODY = {"prompt": "a cat in the rain", "steps": 4, "width": 64, "height": 64}
SUBMIT = "/agent-scheduler/v1/queue/txt2img"
QUEUE = "/featherweight/v1/queue"
GOALS = {"submit_ms": 10.0, "page_s": 5.0, "end_s": 3.0, "restart_s": 5.0, "more_rss_mb": 150.0}


def measured(folder: Path, jobs: int) -> dict[str, float]:
    """The numbers of `GOALS`: the mean time of a submit as `CLIENTS` at once see it, divided by their number."""
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "config.json").write_text(json.dumps({"queue_limit": jobs}), encoding="utf-8")
    server = TinyServer(data)
    server.wait_until_up()
    server.ask(f"{QUEUE}/pause", {})
    before = rss_mb(server)

    def submit(number: int) -> None:
        server.ask(SUBMIT, {**BODY, "prompt": f"{BODY['prompt']}, {number}"}, timeout_s=120.0)

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for _ in clients.map(submit, range(jobs)):
            pass
    found = {"submit_ms": (time.monotonic() - began) / jobs * 1000}
    found["page_s"] = timed(server, QUEUE)
    found["more_rss_mb"] = rss_mb(server) - before
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.exit_code(60) == 0
    found["end_s"] = time.monotonic() - began
    server = TinyServer(data)
    began = time.monotonic()
    server.wait_until_up()
    found["restart_s"] = time.monotonic() - began
    assert server.ask(QUEUE)["waiting_total"] == jobs
    found["page_after_restart_s"] = timed(server, QUEUE)
    found["rss_after_restart_mb"] = rss_mb(server)
    server.kill()
    return {name: round(value, 2) for name, value in found.items()}


def timed(server: TinyServer, path: str) -> float:
    """The median of five replies."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        server.ask(path, timeout_s=120.0)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def rss_mb(server: TinyServer) -> float:
    """Main memory of the server's process."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    """Measure, print, write."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), jobs)
    print_table(["a line of", str(jobs)], [(name, str(value)) for name, value in found.items()])
    met = all(found[name] <= goal for name, goal in GOALS.items())
    write_result("faults", {**read_result("faults"), "long_line": {"jobs": jobs, **found, "met": met}})


if __name__ == "__main__":
    main()
