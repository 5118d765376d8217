"""How soon a warm start answers, alongside the time that importing torch and gradio takes alone; how soon an image of
the bundled model is a file, from nothing; and what an idle server and its idle worker hold in memory.

Run `python -m benchmarks.start [page] [image] [idle]`; all three without a word, what is not named keeps its last
result. What is started is started in turn, several times, and medians count. `idle` is measured 20 s after an image was
made and the model unloaded; Linux only.
"""

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.long_run import Server
from benchmarks.report import print_table, read_result, write_result
from benchmarks.server_memory import Peak

ROOT = Path(__file__).parent.parent
RUNS = 5
GOAL = 1.6
LIMIT_S = 180
IMAGES = 3
IMAGE_GOAL_S = 6.0
IDLE_S = 20.0


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


def page() -> dict[str, object]:
    """The page's first answer, over the imports."""
    import_seconds()
    start_seconds()  # both warm now
    pairs = [(import_seconds(), start_seconds()) for _ in range(RUNS)]
    imports, starts = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(start / imported for imported, start in pairs)
    return {"import_s": imports, "page_s": starts, "ratio": ratio, "goal": GOAL, "met": ratio <= GOAL, "runs": RUNS}


def image() -> dict[str, object]:
    """`launch.py txt2img` with the bundled model and a new data folder, until the file is there; and the CPU seconds of
    the whole process."""
    seconds, cpu = [], []
    for _ in range(IMAGES + 1):
        with tempfile.TemporaryDirectory() as data:
            file = Path(data) / "image.png"
            words = ["txt2img", "--prompt", "a red circle", "--data-dir", data, "--output", str(file)]
            began, before = time.perf_counter(), os.times()
            with subprocess.Popen(
                [sys.executable, "launch.py", *words], cwd=ROOT, stderr=subprocess.DEVNULL
            ) as process:
                while not file.exists() and process.poll() is None:
                    time.sleep(0.01)
                seconds.append(time.perf_counter() - began)
                if process.wait():
                    raise RuntimeError(f"{' '.join(words)} failed with exit status {process.returncode}")
            after = os.times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return {  # the first of them warms
        "image_s": statistics.median(seconds[1:]),
        "image_cpu_s": statistics.median(cpu[1:]),
        "image_goal_s": IMAGE_GOAL_S,
        "image_runs": IMAGES,
    }


def idle() -> dict[str, object]:
    """Bytes that only the server has, and its worker, after an image and unloading."""
    with tempfile.TemporaryDirectory() as data:
        server = Server(Path(data), [])
        try:
            for path, body in (("txt2img", {"prompt": "a red circle", "steps": 8}), ("unload-checkpoint", {})):
                status, text = server.ask(f"/sdapi/v1/{path}", body, LIMIT_S)
                if status != 200:
                    raise RuntimeError(text[:500].decode(errors="replace"))
            time.sleep(IDLE_S)
            found = [Peak() for _ in range(2)]
            found[0].see(server.process.pid)
            for child in _children(server.process.pid):
                one = Peak()
                one.see(child)
                found[1] = max(found[1], one, key=lambda peak: peak.own)  # the other one tracks what is shared
        finally:
            server.process.terminate()
            server.process.wait(60)
    return {
        "idle_server_bytes": found[0].own,
        "idle_server_goal_bytes": 120_000_000,
        "idle_worker_bytes": found[1].own,
        "idle_worker_goal_bytes": 350_000_000,
    }


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has ended
            if int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


PARTS = {"page": page, "image": image, "idle": idle}


def main() -> None:
    """Measure, print, write."""
    found = {key: value for key, value in read_result("start").items() if key != "machine"}
    for part in sys.argv[1:] or PARTS:
        found |= PARTS[part]()
    shown = {
        "import torch, gradio": ("import_s", "s", 1),
        "page answers": ("page_s", "s", 1),
        "ratio": ("ratio", "", 1),
        "image, from nothing to file": ("image_s", "s", 1),
        "CPU time of that": ("image_cpu_s", "s", 1),
        "idle server": ("idle_server_bytes", "MB", 1e6),
        "idle worker, model unloaded": ("idle_worker_bytes", "MB", 1e6),
    }
    rows = [(name, f"{found[key] / scale:.2f} {unit}") for name, (key, unit, scale) in shown.items() if key in found]
    print_table(["", "median"], rows)
    write_result("start", found)


if __name__ == "__main__":
    main()
