"""What the server's process holds in memory while it makes an image of 512 px with a checkpoint of full size, over
diffusers' pipeline in a process of its own.

Run `python -m benchmarks.server_memory [sd1] [sdxl] [--steps N] [--lines WORD]`; both families without a word; what is
not named, and lines without WORD in their titles, keep their last result. Processors without native bf16, where all is
computed in fp32, have a result of their own (`server_memory-fp32.json`; `ATEN_CPU_CAPABILITY=avx2
ONEDNN_MAX_CPU_ISA=AVX2` makes one with AVX512 compute as with AVX2 alone). With `--steps 0` an image of one step is
made, and no time is measured. *One unit*: with a ControlNet of full size, 0.7 GB (SD1) or 2.5 GB (SDXL). Random weights
in a file of 2.1 GB (SD1) and 6.9 GB (SDXL), written and removed.
Each line is a process of its own on two threads. Memory is counted in two parts: what only the process has (RssAnon),
and the pages of files that it maps (RssFile), which the system's file cache holds for all and drops where memory is
short. Linux only.
"""

import base64
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from benchmarks.full_size import write_full_size_checkpoint, write_full_size_control_net
from benchmarks.long_run import Server
from benchmarks.report import print_table, read_result, write_result
from modules.system.devices import native_bf16_cpu

ROOT = Path(__file__).parent.parent
SIDE_PX = 512
FLAGS = {
    "fp8 --lowvram": (["--lowvram"], True, False),
    "fp8 --lowvram, one unit": (["--lowvram"], True, True),
    "fp8": ([], True, False),
    "16-bit file": ([], False, False),
}
"""Starts of our server: flags, whether weights are stored in fp8, and whether a unit of ControlNet takes part."""
PEERS = ("bfloat16", "float32")
REPLY_S = 3600.0


@dataclass
class Peak:
    """The largest values seen, in bytes."""

    own: int = 0
    mapped: int = 0

    def see(self, pid: int) -> None:
        """Take in what the process has now."""
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
        own, mapped = (int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))
        self.own, self.mapped = max(self.own, own), max(self.mapped, mapped)


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    """The peaks of a process while the context is open."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            try:
                peak.see(pid)
            except (OSError, KeyError):
                return  # it has ended

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def ours(checkpoint: Path, name: str, steps: int, folder: Path) -> dict[str, float]:
    """Peaks of our server over one image, and seconds per step: of two requests, the second with twice the steps."""
    flags, in_fp8, has_unit = FLAGS[name]
    data = folder / f"data-{name.replace(' ', '')}"
    data.mkdir()
    unit: dict[str, object] = {}
    if has_unit:
        nets = data / "models" / "ControlNet"
        nets.mkdir(parents=True)
        write_full_size_control_net(nets / "full.safetensors", checkpoint.stem)
        unit = {"alwayson_scripts": {"ControlNet": {"args": [{"module": "none", "model": "full", "image": _white()}]}}}
    settings = {"fp8_storage": "Enable" if in_fp8 else "Disable"}
    (data / "config.json").write_text(json.dumps(settings), encoding="utf-8")  # before a model is loaded
    server = Server(data, [*flags, "--nowebui", "--workers", "0"], checkpoint)  # one process, as the peer has

    def make(count: int) -> float:
        body = {
            "prompt": "a",
            "negative_prompt": "b",
            "width": SIDE_PX,
            "height": SIDE_PX,
            "steps": count,
            "sampler_name": "Euler",
            **unit,
        }
        began = time.monotonic()
        status, text = server.ask("/sdapi/v1/txt2img", body, REPLY_S)
        if status != 200:
            raise RuntimeError(text[:500].decode(errors="replace"))
        return time.monotonic() - began

    try:
        return _line(server.process.pid, make, steps)
    finally:
        server.process.terminate()
        server.process.wait(60)


def _white() -> str:
    stream = io.BytesIO()
    Image.new("RGB", (SIDE_PX, SIDE_PX), "white").save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def peer(checkpoint: Path, family: str, dtype: str, steps: int) -> dict[str, float]:
    """The same of diffusers' pipeline."""
    command = [sys.executable, "-m", "benchmarks.server_memory", "--peer", str(checkpoint), family, dtype]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        send, read = process.stdin, process.stdout

        def make(count: int) -> float:
            send.write(f"{count}\n")
            send.flush()
            line = read.readline()
            if not line:
                raise RuntimeError(f"diffusers' process ended with code {process.wait()}; its errors are printed above")
            return float(line)

        found = _line(process.pid, make, steps)
        process.kill()
        return found


def _line(pid: int, make: Callable[[int], float], steps: int) -> dict[str, float]:
    with watched(pid) as peak:
        make(1)  # loads, and fills caches
        if not steps:
            return {"own_bytes": peak.own, "mapped_bytes": peak.mapped}
        short, long = make(steps), make(2 * steps)
    return {"own_bytes": peak.own, "mapped_bytes": peak.mapped, "step_s": (long - short) / steps}


def run_peer(checkpoint: Path, family: str, dtype: str) -> None:
    """What the peer's process does: an image per line of standard input, its seconds on standard output."""
    import torch

    from benchmarks.pipeline_peer import PIPELINES, write_pipeline_folder

    with tempfile.TemporaryDirectory() as folder:
        write_pipeline_folder(Path(folder), family)
        pipeline = None
        for line in sys.stdin:
            began = time.monotonic()
            if pipeline is None:
                pipeline = PIPELINES[family][0].from_single_file(
                    str(checkpoint), config=folder, local_files_only=True, torch_dtype=getattr(torch, dtype)
                )
                pipeline.set_progress_bar_config(disable=True)
            pipeline("a", negative_prompt="a a", width=SIDE_PX, height=SIDE_PX, num_inference_steps=int(line))
            print(time.monotonic() - began, flush=True)


def main() -> None:
    """Write the files, measure every line, print, write."""
    words = sys.argv[1:]
    if words[:1] == ["--peer"]:
        run_peer(Path(words[1]), words[2], words[3])
        return
    steps = int(words.pop(words.index("--steps") + 1)) if "--steps" in words else 2
    chosen = words.pop(words.index("--lines") + 1) if "--lines" in words else ""
    families = [word for word in words if not word.startswith("--")] or ["sd1", "sdxl"]
    name_of_result = "server_memory" if native_bf16_cpu() else "server_memory-fp32"
    known = read_result(name_of_result)
    results: dict[str, dict[str, dict[str, float]]] = known.get("families", {})
    rows: list[tuple[str, ...]] = []
    for family in families:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            checkpoint = folder / f"{family}.safetensors"
            write_full_size_checkpoint(checkpoint, family)
            measured: dict[str, Callable[[], dict[str, float]]] = {
                f"ours, {start}": partial(ours, checkpoint, start, steps, folder) for start in FLAGS
            }
            measured |= {f"diffusers, {dtype}": partial(peer, checkpoint, family, dtype, steps) for dtype in PEERS}
            lines = results.setdefault(family, {})
            for title in (title for title in measured if chosen in title):
                line = lines[title] = measured[title]()
                print(json.dumps({"family": family, "line": title, **line}), flush=True)
                write_result(
                    name_of_result, {"side_px": SIDE_PX, "steps": steps or known.get("steps", 0), "families": results}
                )
        for title, line in lines.items():
            sizes = (f"{line[part] / 1e9:.2f} GB" for part in ("own_bytes", "mapped_bytes"))
            rows.append((family, title, *sizes, f"{line['step_s']:.1f} s" if "step_s" in line else ""))
    print_table(("family", "process", "own memory", "mapped files", "step"), rows)


if __name__ == "__main__":
    main()
