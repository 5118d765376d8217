"""Downloads over loopback: speed beside curl's, memory, what a verdict on a large file reads, 30 kills.

    python -m benchmarks.downloads [--size-mb 2000] [--kills 30] [--only speed] [--out FILE.json]

The file is served by this process from memory that repeats, so that neither side reads a disk; both write one. The
large file of the verdict is sparse: a real header, and nothing behind it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from modules.downloads.downloads import DownloadRequest, Downloads
from modules.downloads.transport import FileTransport
from modules.flags.flags import Flags
from modules.system.paths import resolve_paths

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "downloads.json"
PIECE = 1 << 20
ROUNDS = 5
GET = "import sys; from modules.cli.get import main; sys.exit(main(sys.argv[1:]))"
MEASURE = (
    "import sys, json\n"
    "from pathlib import Path\n"
    "from benchmarks.downloads import fetched\n"
    "print(json.dumps(fetched(sys.argv[1], Path(sys.argv[2]))))\n"
)


def header_of(tensors: int, size_bytes: int) -> bytes:
    """The beginning of a safetensors file of a Z-Image transformer's size, its weights in bf16."""
    entries: dict[str, Any] = {}
    data, at = size_bytes // (2 * tensors) * 2, 0
    for number in range(tensors):
        name = f"model.diffusion_model.layers.{number // 15}.attention.part{number % 15}.weight"
        entries[name] = {"dtype": "BF16", "shape": [data // 2], "data_offsets": [at, at + data]}
        at += data
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(0)


class Served:
    """A file of a header and repeated pieces. `sent`: bytes of it that were sent so far."""

    def __init__(self, header: bytes, size_bytes: int, slow_s: float = 0.0) -> None:
        self.header, self.slow_s = header, slow_s
        self.size_bytes = size_bytes
        self.piece = random.Random(1).randbytes(PIECE)
        self.sent = 0
        self._digest = ""

    def parts(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` up to `end`."""
        while begin < end:
            if begin < len(self.header):
                part = self.header[begin:end]
            else:
                at = (begin - len(self.header)) % PIECE
                part = self.piece[at : at + end - begin]
            yield part
            begin += len(part)

    @property
    def sha256(self) -> str:
        """Of all of it; taken once."""
        if not self._digest:
            digest = hashlib.sha256()
            for part in self.parts(0, self.size_bytes):
                digest.update(part)
            self._digest = digest.hexdigest()
        return self._digest


@contextmanager
def serving(file: Served, announces: bool = True) -> Iterator[str]:
    """The address of the file."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            begin, end, wanted = 0, file.size_bytes, self.headers.get("Range", "")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1 if last else end, end)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("ETag", '"v1"')
            if announces:
                self.send_header("X-Linked-Etag", f'"{file.sha256}"')
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{file.size_bytes}")
            self.end_headers()
            try:
                for part in file.parts(begin, end):
                    self.wfile.write(part)
                    file.sent += len(part)
                    if file.slow_s:
                        time.sleep(file.slow_s)
            except OSError:
                self.close_connection = True  # the other side has read enough, or was killed

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that were killed are meant."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/model.safetensors"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def downloads_in(folder: Path) -> Downloads:
    """Of a data folder of its own."""
    return Downloads(resolve_paths(Flags(data_dir=str(folder)), ROOT), FileTransport())


def fetched(url: str, folder: Path) -> dict[str, float]:
    """Download one file in this process: seconds, and by how much the memory grew at most."""
    downloads = downloads_in(folder)
    downloads.find(DownloadRequest(url))  # imports and buffers that come once
    before = resident_mb()
    most, calls = before, 0

    def look(done: int, total: int) -> None:
        nonlocal most, calls
        calls += 1
        if calls % 64 == 0:
            most = max(most, resident_mb())

    began = time.perf_counter()
    downloads.get(DownloadRequest(url), look)
    seconds = time.perf_counter() - began
    downloads.transport.close()
    return {"seconds": seconds, "rss_growth_mb": most - before}


def resident_mb() -> float:
    """What this process holds in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def speed(size_bytes: int) -> dict[str, Any]:
    """Ours with the hash, and curl's without, by turns."""
    file = Served(header_of(400, size_bytes), size_bytes)
    file.size_bytes = size_bytes
    ours: list[float] = []
    curls: list[float] = []
    grown: list[float] = []
    assert file.sha256
    with serving(file) as url:
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as name:
                began = time.perf_counter()
                subprocess.run(["curl", "-s", "-o", f"{name}/a", url], check=True)
                curls.append(time.perf_counter() - began)
            with tempfile.TemporaryDirectory() as name:
                command = [sys.executable, "-c", MEASURE, url, name]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                ours.append(found["seconds"])
                grown.append(found["rss_growth_mb"])
    mine, theirs = statistics.median(ours), statistics.median(curls)
    return {
        "size_mb": size_bytes / 1e6,
        "ours_mb_per_s": round(size_bytes / 1e6 / mine, 1),
        "curl_mb_per_s": round(size_bytes / 1e6 / theirs, 1),
        "share_of_curl": round(theirs / mine, 3),
        "rss_growth_mb": round(max(grown), 1),
        "rounds": ROUNDS,
        "load_average": round(os.getloadavg()[0], 1),  # of other work on the machine, this included
    }


def large_header(folder: Path) -> tuple[bytes, int]:
    """The header of SDXL of full size with all of its weights in 32 bits, and the size of that file."""
    from benchmarks.full_size import write_full_size_header
    from modules.models.files.header import LENGTH_BYTES, header_length

    path = folder / "sdxl.safetensors"
    write_full_size_header(path, "sdxl")
    with path.open("rb") as file:
        entries = json.loads(file.read(header_length(file.read(LENGTH_BYTES))))
    path.unlink()
    at = 0
    for name, entry in entries.items():
        if name != "__metadata__":
            size = 4 * math.prod(entry["shape"])
            entry.update(dtype="F32", data_offsets=[at, at + size])
            at += size
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw, 8 + len(raw) + at


def verdict_of_a_large_file() -> dict[str, Any]:
    """How much of a file of more than 12 GB is read until it is known what it is and whether it fits."""
    with tempfile.TemporaryDirectory() as folder:
        header, size = large_header(Path(folder))
        file = Served(header, size)
        with serving(file, announces=False) as url:
            downloads = downloads_in(Path(folder))
            began = time.perf_counter()
            it = downloads.find(DownloadRequest(url))
            looked = time.perf_counter() - began
            verdict = downloads.judged(it)
            downloads.transport.close()
    return {
        "size_gb": round(size / 1e9, 2),
        "read_kb": round(file.sent / 1e3, 1),
        "header_seconds": round(looked, 3),
        "verdict_seconds": round(time.perf_counter() - began - looked, 2),
        "line": it.line,
        "fits": verdict.fits,
        "verdict": verdict.text,
    }


def kills(count: int) -> dict[str, Any]:
    """kill -9 at random moments of one download, which goes on each time; at the end the file is whole."""
    size = 48 << 20
    file = Served(header_of(40, size), size, slow_s=0.01)
    wrong: list[str] = []
    parts: list[int] = []
    moments = random.Random(7)
    with serving(file) as url, tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-c", GET, url, "--data-dir", name]
        target = Path(name) / "models" / "Stable-diffusion" / "model.safetensors"
        part = target.with_name(".model.safetensors.part")
        done = 0
        while done < count:
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            before = part.stat().st_size if part.exists() else 0
            limit = time.monotonic() + 60
            while not (part.exists() and part.stat().st_size > before) and process.poll() is None:
                time.sleep(0.001)
                assert time.monotonic() < limit, "the download does not begin"
            time.sleep(moments.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            if target.exists():
                if hashlib.sha256(target.read_bytes()).hexdigest() != file.sha256:
                    wrong.append(f"kill {done}: a file that is not whole has the model's name")
                target.unlink()  # it was finished: the next begins again
            parts.append(part.stat().st_size if part.exists() else 0)
        file.slow_s = 0.0
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        is_whole = hashlib.sha256(target.read_bytes()).hexdigest() == file.sha256
        left = sorted(path.name for path in target.parent.iterdir())
    return {"kills": count, "half_files": wrong, "part_bytes": parts, "is_whole_at_the_end": is_whole, "left": left}


def main() -> int:
    """Measure and write the result; exit code 1 where a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--only", choices=("verdict", "kills", "speed"), help="measure this; the rest stays as it was")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "verdict": verdict_of_a_large_file,
        "kills": lambda: kills(arguments.kills),
    }
    if shutil.which("curl"):
        steps["speed"] = lambda: speed(arguments.size_mb * 1_000_000)
    found: dict[str, Any] = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.only else {}
    found["cores"] = os.cpu_count()
    for name, step in steps.items():
        if arguments.only not in (None, name):
            continue
        found[name] = step()
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    promises = {
        "under 1 MB read for a verdict": found["verdict"]["read_kb"] < 1000 and found["verdict"]["fits"] is not None,
        "no half file after kill -9": not found["kills"]["half_files"] and found["kills"]["is_whole_at_the_end"],
        "0.8 of curl's speed, the hash included": found.get("speed", {}).get("share_of_curl", 0) >= 0.8,
        "at most 60 MB more memory": found.get("speed", {}).get("rss_growth_mb", 61) <= 60,
    }
    found["promises"] = promises
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(promises, indent=1))
    return 0 if all(promises.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
