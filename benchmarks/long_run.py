"""A server that runs long: twenty clients for ten minutes, then a thousand images, then SIGTERM with a full line.

Run `python -m benchmarks.long_run [--minutes 10] [--images 1000] [--clients 20] [-- FLAGS OF THE SERVER]`. The server
is whole (page, API, queue, history, files) and computes with the tiny checkpoint of the tests. Counted are replies that
never came and replies that are not the answer: another seed, prompt or size, or an image that differs from what the
same request gave before. Memory is that of the server and its worker processes (Linux).
"""

import argparse
import base64
import contextlib
import http.client
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
TINY = ROOT / "tests" / "reference" / "models" / "tiny-sd1.safetensors"
START = (
    "import sys, webui; from modules.flags.flags import parse_flags; sys.exit(webui.main(parse_flags(sys.argv[1:])))"
)
SEEDS = 12  # so few that every request comes again and can be compared
LOOKS = ("/sdapi/v1/progress", "/featherweight/v1/queue", "/featherweight/v1/history", "/internal/missing", "/")
WARM_IMAGES = 50
START_S, REPLY_S, END_S = 180.0, 120.0, 5.0
GROWTH_CLIENTS, GROWTH_IMAGES = 0.02, 0.03


class Server:
    """One start of the program on a data folder. `patience_s`: how long a client waits for a reply."""

    patience_s: ClassVar[float] = REPLY_S

    def __init__(self, data: Path, flags: Sequence[str], checkpoint: Path = TINY) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.log = data.with_suffix(f".{self.port}.log")
        own = ["--port", str(self.port), "--data-dir", str(data), "--ckpt", str(checkpoint), "--use-cpu", "all"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, *own, *flags], cwd=ROOT, stdout=log, stderr=log
            )
        self.looks = tuple(path for path in LOOKS if path != "/" or "--nowebui" not in flags)
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("/internal/ping")[0] == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the server does not answer:\n{self.log.read_text(errors='replace')}")

    def ask(self, path: str, body: object = None, timeout_s: float | None = None) -> tuple[int, bytes]:
        """Status and text of the reply to a GET, or to a POST where there is a body. Raises OSError and
        HTTPException where none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s or self.patience_s)
        try:
            data = None if body is None else json.dumps(body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", path, data, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def rss_bytes(self) -> int:
        """Resident memory of the server and of all processes below it; 0 where the system does not say."""
        total, wanted = 0, [self.process.pid]
        while wanted:
            pid = wanted.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
                total += next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
                for task in Path(f"/proc/{pid}/task").iterdir():
                    wanted += map(int, (task / "children").read_text(encoding="ascii").split())
            except (OSError, StopIteration):
                continue  # it has just ended, or this is no Linux
        return total


@dataclass
class Counts:
    """What the clients saw."""

    images: int = 0
    looks: int = 0
    lost: int = 0  # no reply, or an error
    wrong: int = 0
    problems: list[str] = field(default_factory=list)
    first: dict[int, str] = field(default_factory=dict)  # by seed: the hash of the pixels
    lock: threading.Lock = field(default_factory=threading.Lock)

    def problem(self, is_lost: bool, text: str) -> None:
        """Count and remember the first few."""
        with self.lock:
            self.lost += is_lost
            self.wrong += not is_lost
            if len(self.problems) < 20:
                self.problems.append(text[:300])


def body_of(seed: int, **changed: object) -> dict[str, Any]:
    """A request whose answer depends on the seed alone."""
    size = 64 + 64 * (seed % 2)
    return {
        "prompt": f"a cat, number {seed}",
        "seed": seed,
        "width": size,
        "height": 64,
        "steps": 2,
        "sampler_name": "Euler a",
        "cfg_scale": 5,
        **changed,
    }


def ask_for_image(server: Server, counts: Counts, seed: int) -> None:
    """One image, compared with what was asked and with what came before."""
    asked = body_of(seed)
    try:
        status, text = server.ask("/sdapi/v1/txt2img", asked)
    except (OSError, http.client.HTTPException) as error:
        counts.problem(True, f"txt2img, seed {seed}: {type(error).__name__}: {error}")
        return
    if status != 200:
        counts.problem(True, f"txt2img, seed {seed}: {status} {text[:200]!r}")
        return
    try:
        reply = json.loads(text)
        info = json.loads(reply["info"])
        (encoded,) = reply["images"]
        image = Image.open(BytesIO(base64.b64decode(encoded))).convert("RGB")
        found = (info["seed"], info["prompt"], image.size)
    except (ValueError, KeyError, OSError) as error:
        counts.problem(False, f"txt2img, seed {seed}: the reply cannot be read: {error}")
        return
    if found != (seed, asked["prompt"], (asked["width"], asked["height"])):
        counts.problem(False, f"txt2img, seed {seed}: the reply is of {found}")
    pixels = sha256(image.tobytes()).hexdigest()
    with counts.lock:
        counts.images += 1
        is_same = counts.first.setdefault(seed, pixels) == pixels
    if not is_same:
        counts.problem(False, f"txt2img, seed {seed}: another image than before")


def look(server: Server, counts: Counts, path: str) -> None:
    """What a page that is open asks for."""
    try:
        status, _ = server.ask(path)
    except (OSError, http.client.HTTPException) as error:
        counts.problem(True, f"{path}: {type(error).__name__}: {error}")
        return
    with counts.lock:
        counts.looks += 1
    expected = 404 if "missing" in path else 200
    if status != expected:
        counts.problem(True, f"{path}: {status}")


def client(server: Server, counts: Counts, until: float, number: int) -> None:
    """Asks one thing after the other."""
    draw = random.Random(number)
    while time.monotonic() < until:
        ask_for_image(server, counts, draw.randrange(SEEDS))
        look(server, counts, draw.choice(server.looks))


@contextlib.contextmanager
def sampled(server: Server, every_s: float) -> Iterator[list[tuple[float, int]]]:
    """Resident bytes by seconds since the beginning, while the context is open."""
    began, over = time.monotonic(), threading.Event()
    samples: list[tuple[float, int]] = []

    def sample() -> None:
        while not over.wait(every_s):
            samples.append((time.monotonic() - began, server.rss_bytes()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def growth(samples: Sequence[tuple[float, int]], from_s: float) -> float:
    """How much larger the last tenth of the time is than the tenth after `from_s`, as a share."""
    if not samples or not samples[-1][1]:
        return 0.0
    end = samples[-1][0]
    width = max((end - from_s) / 10, 1.0)
    first = [size for at, size in samples if from_s <= at <= from_s + width]
    last = [size for at, size in samples if at >= end - width]
    return statistics.median(last) / statistics.median(first or last) - 1


def with_clients(server: Server, clients: int, seconds: float) -> tuple[Counts, float, int]:
    """Counts, growth of memory after the first minute (of a shorter run: its first third), bytes at the end."""
    counts = Counts()
    until = time.monotonic() + seconds
    with sampled(server, min(1.0, seconds / 60)) as samples, ThreadPoolExecutor(clients) as pool:
        for number in range(clients):
            pool.submit(client, server, counts, until, number)
    return counts, growth(samples, min(60.0, seconds / 3)), samples[-1][1] if samples else 0


def with_images(server: Server, images: int) -> tuple[int, float]:
    """Images that were saved, and how much memory has grown since the first ones."""
    made, base = 0, 0
    while made < images:
        count = min(10, images - made)
        asked = body_of(made, n_iter=count, save_images=True, send_images=False, width=64)
        status, text = server.ask("/sdapi/v1/txt2img", asked)
        if status != 200:
            raise RuntimeError(f"after {made} images: {status} {text[:300]!r}")
        made += count
        if not base and made >= min(WARM_IMAGES, images // 2):
            base = server.rss_bytes()
    return made, server.rss_bytes() / base - 1 if base else 0.0


def with_sigterm(server: Server, data: Path, flags: Sequence[str], jobs: int) -> tuple[float, int, int]:
    """Seconds until the server has ended, its exit code, and how many of the jobs are not there at the next start."""
    names = [f"left-{number}" for number in range(jobs)]

    def submit(name: str) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            server.ask("/sdapi/v1/txt2img", body_of(1, force_task_id=name, n_iter=50, steps=40, save_images=True))

    def pending(of: Server) -> list[str]:
        found: list[str] = json.loads(of.ask("/internal/pending-tasks")[1])["tasks"]
        return found

    with ThreadPoolExecutor(jobs) as pool:
        for name in names:
            pool.submit(submit, name)
        wait_until(lambda: len(pending(server)) >= jobs)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(60)
        except subprocess.TimeoutExpired:
            server.process.kill()
        seconds = time.monotonic() - began
    again = Server(data, flags)
    there = pending(again)
    again.process.kill()
    again.process.wait()
    return seconds, server.process.returncode or 0, len(set(names) - set(there))


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return as soon as it holds, or after the time."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)


def measured(folder: Path, minutes: float, images: int, clients: int, flags: Sequence[str]) -> dict[str, Any]:
    """All numbers."""
    data = folder / "data"
    server = Server(data, flags)
    try:
        counts, grown, end_bytes = with_clients(server, clients, minutes * 60)
        made, grown_by_images = with_images(server, images)
        saved = len(list((data / "outputs").rglob("*.png")))
        seconds, code, missing = with_sigterm(server, data, flags, clients)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    whole = counts.lost + counts.wrong + missing == 0 and saved >= made and code == 0 and seconds <= END_S
    return {
        "minutes": minutes,
        "clients": clients,
        "flags": list(flags),
        "replies_with_images": counts.images,
        "other_replies": counts.looks,
        "replies_lost": counts.lost,
        "replies_wrong": counts.wrong,
        "problems": counts.problems,
        "rss_mb_after_the_clients": round(end_bytes / 1e6, 1),
        "rss_growth_after_the_first_minute": round(grown, 4),
        "images": made,
        "rss_growth_over_the_images": round(grown_by_images, 4),
        "sigterm_seconds": round(seconds, 2),
        "sigterm_exit_code": code,
        "jobs_missing_after_sigterm": missing,
        "met": whole and grown < GROWTH_CLIENTS and grown_by_images < GROWTH_IMAGES,
    }


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--patience", type=float, default=REPLY_S, help="seconds that a client waits for its reply")
    parser.add_argument("--name", default="long_run", help="of the file of results")
    parser.add_argument("flags", nargs="*", help="flags of the server, after --")
    options = parser.parse_args()
    Server.patience_s = options.patience
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), options.minutes, options.images, options.clients, options.flags)
    print_table(["long run", ""], [(name.replace("_", " "), str(value)) for name, value in found.items()])
    write_result(options.name, found)


if __name__ == "__main__":
    main()
