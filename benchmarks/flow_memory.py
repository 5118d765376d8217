"""What the whole server holds in memory while it makes an image of 512 px with a flow model of full size, weights in
int8 streamed from their files, over diffusers' denoiser in bf16.

Run `python -m benchmarks.flow_memory [FAMILY ...] [--steps N] [--files FOLDER] [--without-peer]`, families as in
`benchmarks.plan_table`. Random weights (11 GB for the first), written into a temporary folder, or kept in FOLDER. The
server is one process on one thread: memory is what only the process has (RssAnon), by stage of the image; the pages of
files that it maps are held by the system's file cache and counted apart. Times are CPU seconds of the process, so that
other work on the machine counts little. The peer is the class of diffusers with all its blocks, which share their
weights so that it fits (`benchmarks.full_size_parts`); the two take turns. Linux only.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.long_run import Server
from benchmarks.plan_table import CASES, Case
from benchmarks.report import print_table, read_result, write_result

ROOT = Path(__file__).parent.parent
SIDE_PX = 512
SETTINGS = {
    "fp8_storage": "Enable",
    "fp8_format": "int8_row",
    "compute_mode": "int8 matmul",
    "stream_weights": "Layers",
    "prompt_cache_mb": 0,
}
"""`prompt_cache_mb`: the second prompt is another one, and is encoded."""
REPLY_S = 7200.0
GB = 1e9


class Watch:
    """Own and mapped memory of a process, a reading every 50 ms."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.readings: list[tuple[float, int, int, float]] = []  # time.monotonic, own and mapped bytes, CPU seconds

    def read(self) -> tuple[int, int]:
        """Now."""
        status = Path(f"/proc/{self._pid}/status").read_text("ascii")
        lines = dict(line.split(":", 1) for line in status.splitlines())
        own, mapped = (int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))
        self.readings.append((time.monotonic(), own, mapped, cpu_seconds(self._pid)))
        return own, mapped

    def own_between(self, begin: float, end: float) -> int:
        """The largest own memory in a stretch of time."""
        return max((own for at, own, *_ in self.readings if begin <= at <= end), default=0)

    def cpu_between(self, begin: float, end: float) -> float:
        """CPU seconds in a stretch of time."""
        found = [cpu for at, *_, cpu in self.readings if begin <= at <= end]
        return found[-1] - found[0] if found else 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Read while the context is open."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                try:
                    self.read()
                except (OSError, KeyError):
                    return  # it has ended

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have computed."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def disk_bytes(pid: int) -> int:
    """What a process had read from disks."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines())
    return int(lines["read_bytes"])


def read_seconds(path: Path) -> tuple[float, float]:
    """Reading a file once: seconds, and CPU seconds."""
    before, began = os.times(), time.monotonic()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.monotonic() - began, os.times()
    return seconds, after.children_user + after.children_system - before.children_user - before.children_system


class Ours:
    """A server with the checkpoint, and what it took."""

    def __init__(self, files: Path, checkpoint: Path, data: Path) -> None:
        data.mkdir()
        (data / "config.json").write_text(json.dumps(SETTINGS), encoding="utf-8")  # before a model is loaded
        flags = ["--models-dir", str(files), "--nowebui", "--workers", "0", "--cpu-threads", "1", "--no-hashing"]
        self.server = Server(data, flags, checkpoint)
        self.pid = self.server.process.pid
        self.watch = Watch(self.pid)

    def make(self, prompt: str, steps: int) -> dict[str, Any]:
        """An image: by stage the most own memory, and seconds with CPU seconds; bytes read from disk."""
        body = {
            "prompt": prompt,
            "width": SIDE_PX,
            "height": SIDE_PX,
            "steps": steps,
            "sampler_name": "Euler",
            "scheduler": "Simple",
            "cfg_scale": 1,
        }
        disk = disk_bytes(self.pid)
        status, text = self.server.ask("/sdapi/v1/txt2img", body, REPLY_S)
        over = time.monotonic()
        if status != 200:
            raise RuntimeError(text[:500].decode(errors="replace"))
        timeline = json.loads(self.server.ask("/featherweight/v1/memory-timeline")[1])
        stages = timeline["stages"]
        zero = over - max(stage["end_s"] for stage in stages)
        own: dict[str, int] = {}
        seconds: dict[str, list[float]] = {}
        for stage in stages:
            name, stretch = stage["stage"], (zero + stage["begin_s"], zero + stage["end_s"])
            own[name] = max(own.get(name, 0), self.watch.own_between(*stretch))
            so_far = seconds.get(name, [0.0, 0.0])
            taken = (stage["end_s"] - stage["begin_s"], self.watch.cpu_between(*stretch))
            seconds[name] = [round(before + more, 2) for before, more in zip(so_far, taken, strict=True)]
        found = {
            "own_bytes": own,
            "seconds": seconds,
            "disk_bytes": disk_bytes(self.pid) - disk,
        }
        print(json.dumps(found), flush=True)
        return found

    def close(self) -> None:
        """End the server."""
        self.server.process.terminate()
        self.server.process.wait(60)


class Peer:
    """diffusers' denoiser in a process of its own: a call for each line that it is sent."""

    def __init__(self, case: Case) -> None:
        command = [sys.executable, "-m", "benchmarks.flow_memory", "--peer", case.label]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self) -> float:
        """CPU seconds of a call."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"diffusers' process ended with code {self.process.wait()}; see its errors above")
        return float(line)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin and self.process.stdout
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def run_peer(case: Case) -> None:
    """What the peer's process does."""
    import torch

    from benchmarks.full_size_parts import flow_step, peer_denoiser

    torch.set_num_threads(1)
    model, denoiser = peer_denoiser(case)
    for _ in sys.stdin:
        began = time.process_time()
        flow_step(model, denoiser, SIDE_PX)
        print(time.process_time() - began, flush=True)


def measure(case: Case, files: Path, steps: int, with_peer: bool) -> dict[str, Any]:
    """A server's start, an image of one step, one of more with another prompt, the peer's calls in turn."""
    from benchmarks.full_size_parts import write_parts

    checkpoint = files / "Stable-diffusion" / f"{case.denoiser}.safetensors"
    if not checkpoint.exists():
        write_parts(files, case)
    peer = Peer(case) if with_peer else None
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(files, checkpoint, Path(folder) / "data")
        try:
            with ours.watch.on():
                started, _ = ours.watch.read()
                short = ours.make("a lighthouse on a rock in the evening", 1)
                if peer is not None:
                    peer.step()  # fills caches
                peer_steps = [peer.step()] if peer is not None else []
                long = ours.make("a lighthouse on a rock in the morning", 1 + steps)
                peer_steps += [peer.step()] if peer is not None else []
                mapped = max(mapped for _, _, mapped, _ in ours.watch.readings)
                peak = max(own for _, own, *_ in ours.watch.readings)
        finally:
            ours.close()
            if peer is not None:
                peer.close()
    encoders = [files / "text_encoder" / f"{encoder}.safetensors" for encoder in case.encoders]
    reads = [read_seconds(path) for path in encoders]
    return {
        "own_bytes": peak,
        "own_bytes_started": started,
        "mapped_bytes": mapped,
        "images": [short, long],
        "step_cpu_s": (long["seconds"]["denoise"][1] - short["seconds"]["denoise"][1]) / steps,
        "diffusers_bf16_step_cpu_s": peer_steps,
        "reading_encoders_s": sum(seconds for seconds, _ in reads),
        "reading_encoders_cpu_s": sum(cpu for _, cpu in reads),
        "file_bytes": sum(path.stat().st_size for path in (checkpoint, *encoders)),
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def row(label: str, line: Mapping[str, Any]) -> tuple[str, ...]:
    """For people."""
    peers = sorted(line["diffusers_bf16_step_cpu_s"])
    ratio = f"{line['step_cpu_s'] / peers[len(peers) // 2]:.2f}" if peers else ""
    text = line["images"][1]["seconds"].get("text", [0.0, 0.0])[0]
    return (
        label,
        f"{line['own_bytes'] / GB:.2f} GB",
        f"{line['file_bytes'] / GB:.1f} GB",
        f"{line['step_cpu_s']:.1f} s",
        ratio,
        f"{text:.1f} s",
        f"{text / line['reading_encoders_s']:.2f}",
    )


def main() -> None:
    """Write the files, measure every family, print, write."""
    words = sys.argv[1:]
    cases = {case.label: case for case in CASES if case.vae}
    if words[:1] == ["--peer"]:
        run_peer(cases[words[1]])
        return
    steps = int(words.pop(words.index("--steps") + 1)) if "--steps" in words else 1
    kept = words.pop(words.index("--files") + 1) if "--files" in words else ""
    chosen = [word for word in words if not word.startswith("--")] or ["Z-Image Turbo"]
    results: dict[str, dict[str, Any]] = read_result("flow_memory").get("families", {})
    for label in chosen:
        with tempfile.TemporaryDirectory() as folder:
            results[label] = measure(cases[label], Path(kept or folder), steps, "--without-peer" not in words)
        print(json.dumps({"family": label, **results[label]}), flush=True)
        write_result("flow_memory", {"side_px": SIDE_PX, "steps": steps, "settings": SETTINGS, "families": results})
    heads = ("family", "own memory", "files", "step, CPU", "over diffusers, bf16", "prompt", "over reading its file")
    print_table(heads, [row(label, line) for label, line in results.items()])


if __name__ == "__main__":
    main()
