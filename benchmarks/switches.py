"""What each switch that saves memory saves and costs: one image of 512 px with a checkpoint of Stable Diffusion 1's
full size (random weights), on the CPU in fp32, each switch in a process of its own.

Run `python -m benchmarks.switches [SWITCH ...]`; switches that are not named keep what `results/switches.json` has of
them. `--folder DIR` keeps the checkpoint there for the next time. Peaks are those of the process, by stage, less what
the program takes before it loads a model; seconds are of all threads. `--image FILE.svg` draws the timeline of one
image of the shipped model instead.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import print_table, read_result, write_result

ROOT = Path(__file__).parent.parent
SHIPPED = "featherweight-scenes.safetensors"
FP8 = {"fp8_storage": "Enable"}
SWITCHES: dict[str, dict[str, Any]] = {
    "none": {},
    "FP8 weight": FP8,
    "Split feed-forward 4": {"split_feed_forward": "4"},
    "Batch cond/uncond off": {"batch_cond_uncond": False},
    "VAE tiles of 256": {"vae_tile_size": 256},
    "Parts": {"stream_weights": "Parts"},
    "Blocks": {"stream_weights": "Blocks"},
    "Layers": {"stream_weights": "Layers"},
    "FP8 weight, Parts": {**FP8, "stream_weights": "Parts"},
    "FP8 weight, Layers, Split feed-forward 4, Batch cond/uncond off": {
        **FP8,
        "stream_weights": "Layers",
        "split_feed_forward": "4",
        "batch_cond_uncond": False,
    },
}
STAGES = ("load", "text", "denoise", "decode")


def image(checkpoint: str, folder: Path | None, settings: dict[str, Any], side: int, steps: int) -> dict[str, Any]:
    """Make one image; its timeline as JSON, with what the program held before, and seconds by part."""
    import torch

    from modules.assembly import build_services
    from modules.flags.flags import Flags
    from modules.memory.timeline import resident_bytes
    from modules.processing.pipeline.generate import generate
    from modules.processing.record.output import Output
    from modules.processing.request.events import Silent
    from modules.processing.request.request import GenerationRequest

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as data:
        services = build_services(
            Flags(
                data_dir=data, use_cpu=("all",), ckpt_dir=str(folder) if folder else None, no_half=True, no_hashing=True
            )
        )
        values = {"live_previews_enable": False, "return_grid": False, **settings}
        request = GenerationRequest(
            prompt="a red circle on a blue background",
            width=side,
            height=side,
            steps=steps,
            seed=1,
            subseed=1,
            checkpoint=checkpoint,
            save_images=False,
            save_grid=False,
            settings=services.settings.current.with_changes(values),
        )
        before, began = resident_bytes(), time.process_time()
        result = generate(request, services.engine, Output(Path(data)), Silent())
        seconds = time.process_time() - began
        services.dispatcher.close()
    assert result.memory is not None
    return {"before": before, "seconds": seconds, "timings": result.timings_s, "timeline": result.memory.as_dict()}


def in_child(checkpoint: Path, switch: str) -> dict[str, Any]:
    """The same in another process."""
    command = [sys.executable, "-m", "benchmarks.switches", "--child", str(checkpoint), switch]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Bytes by stage above what the program holds, and seconds of a step and of all."""
    peaks = {
        stage: max(item["rss"] for item in found["timeline"]["stages"] if item["stage"] == stage) - found["before"]
        for stage in STAGES
    }
    timings = {name: round(seconds, 2) for name, seconds in found["timings"].items()}
    return {"peak_bytes": peaks, "seconds": round(found["seconds"], 2), "timings": timings}


# -- the timeline as an image: what the page draws, on paper ----------------------------------------------------------

WIDE, HIGH, TOP, BOTTOM = 900, 260, 20, 30


def draw(timeline: dict[str, Any]) -> str:
    """Stages as bands, their peaks as dashed lines, the samples as a curve: an SVG."""
    stages = [item for item in timeline["stages"] if item["stage"] in (*STAGES, "save", "adapters")]
    end: float = max(item["end_s"] for item in stages)
    most: float = 1.1 * timeline["peak"]["rss"]

    def x(seconds: float) -> float:
        return round(WIDE * seconds / end, 1)

    def y(count: float) -> float:
        return round(TOP + (1 - count / most) * (HIGH - TOP - BOTTOM), 1)

    shapes = [f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>']
    for index, item in enumerate(stages):
        left, width = x(item["begin_s"]), max(x(item["end_s"]) - x(item["begin_s"]), 0.5)
        fill = ("#e3e9f0", "#f1f3f6")[index % 2]
        shapes.append(f'<rect x="{left}" y="{TOP}" width="{width}" height="{HIGH - TOP - BOTTOM}" fill="{fill}"/>')
        peak = y(item["rss"])
        dashes = 'stroke="#5b6b7d" stroke-dasharray="4 3"'
        shapes.append(f'<line x1="{left}" x2="{left + width}" y1="{peak}" y2="{peak}" {dashes}/>')
        if width > 30:
            label = item["stage"] + (f", {item['rss'] / 1e9:.2f} GB" if width > 120 else "")
            shapes.append(f'<text x="{left + 4}" y="{HIGH - 10}" font-size="13" fill="#334155">{label}</text>')
    points = " ".join(f"{x(at)},{y(rss)}" for at, _, rss, *_ in timeline["samples"] if at <= end)
    shapes.append(f'<polyline points="{points}" fill="none" stroke="#0f766e" stroke-width="2"/>')
    title = "Main memory of the program while it makes an image"
    shapes.append(f'<text x="4" y="14" font-size="13" fill="#334155">{title}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" role="img">'
    return "\n".join([head, f"<title>{title}</title>", *shapes, "</svg>"]) + "\n"


def main() -> None:
    """Measure the switches that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("switches", nargs="*", metavar="SWITCH", help=f"of: {'; '.join(SWITCHES)}")
    parser.add_argument("--folder", help="where the checkpoint is kept for the next time")
    parser.add_argument("--image", metavar="FILE", help="draw a timeline of the shipped model")
    parser.add_argument("--child", nargs=2, metavar=("CHECKPOINT", "SWITCH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, switch = Path(arguments.child[0]), arguments.child[1]
        print(json.dumps(image(path.name, path.parent, SWITCHES[switch], 512, 1)))
        return
    if arguments.image:
        Path(arguments.image).write_text(draw(image(SHIPPED, None, {}, 512, 8)["timeline"]), encoding="utf-8")
        return
    from benchmarks.full_size import write_full_size_checkpoint

    with tempfile.TemporaryDirectory() as name:
        path = Path(arguments.folder or name) / "full.safetensors"
        if not path.is_file():
            write_full_size_checkpoint(path)
        for switch in arguments.switches or SWITCHES:
            known = read_result("switches").get("switches", {})
            write_result("switches", {"switches": {**known, switch: summary(in_child(path, switch))}})
    rows = read_result("switches")["switches"]
    print_table(
        ("switch", *(f"{stage}, GB" for stage in STAGES), "seconds"),
        [
            (name, *(f"{row['peak_bytes'][stage] / 1e9:.2f}" for stage in STAGES), f"{row['seconds']:.0f}")
            for name, row in rows.items()
        ],
    )


if __name__ == "__main__":
    main()
