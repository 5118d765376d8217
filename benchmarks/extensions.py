"""What extensions that do nothing cost: 30 of them at the start of a program, and one of them an image.

Run `python -m benchmarks.extensions`. Programs are built in processes of their own, with and without the extensions in
turn; the ratio of the medians counts. The hooks of a job are called by the script runner alone, without a model.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
COUNT = 30
RUNS = 2
HOOKS = ("setup", "before_process", "process", "before_process_batch", "process_batch", "postprocess_image")
JOBS = 50
START_GOAL, IMAGE_GOAL_MS = 1.5, 2.0
IDLE = """
import modules.scripts as scripts
from modules import script_callbacks, shared

class Idle(scripts.Script):
    def title(self): return "Idle NUMBER"
    def show(self, is_img2img): return scripts.AlwaysVisible
    def process(self, p, *args): pass
    def process_batch(self, p, *args, **kwargs): pass
    def postprocess_image(self, p, pp, *args): pass

script_callbacks.on_ui_settings(lambda: shared.opts.add_option("idle_NUMBER", shared.OptionInfo(True, "Idle")))
"""
BUILD = """
import sys, time
began = time.perf_counter()
from modules.assembly import build_services
from modules.flags.flags import Flags
from compat.foreign import Foreign
services = build_services(Flags(data_dir=sys.argv[1], workers=1), foreign=Foreign())
from modules.ui.app import build_page
import asyncio
async def build(): return build_page(services)
asyncio.run(build())
print(time.perf_counter() - began)
import os; sys.stdout.flush(); os._exit(0)
"""


def write_idle(folder: Path) -> None:
    """The extensions."""
    for number in range(COUNT):
        place = folder / "extensions" / f"idle-{number}" / "scripts"
        place.mkdir(parents=True)
        (place / "idle.py").write_text(IDLE.replace("NUMBER", str(number)))


def start_seconds(folder: Path) -> float:
    """From the first import to the built page, with the extensions of this data folder."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(done.stdout.strip().splitlines()[-1])


def image_ms(folder: Path) -> float:
    """What one idle extension adds to a job of one image."""
    from compat.foreign import Foreign
    from modules.processing.request.request import GenerationRequest
    from modules.scripts.hooks import ScriptRunner
    from modules.scripts.library import ScriptLibrary

    def seconds(library: ScriptLibrary) -> float:
        request: Any = GenerationRequest(prompt="a")
        began = time.perf_counter()
        for _ in range(JOBS):
            runner = ScriptRunner(library.taking_part(False, {}), library.callbacks, request)
            for hook in HOOKS:
                facts = {} if "batch" not in hook else {"batch_number": 0}
                runner.call(hook, None, *([None] if hook == "postprocess_image" else []), **facts)
        return (time.perf_counter() - began) / JOBS

    library = ScriptLibrary.load([folder / "extensions"], foreign=Foreign())
    seconds(library)
    return 1000 * (seconds(library) - seconds(ScriptLibrary())) / COUNT


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        plain, full = Path(one), Path(other)
        write_idle(full)
        start_seconds(plain)
        start_seconds(full)  # both warm now
        pairs = [(start_seconds(plain), start_seconds(full)) for _ in range(RUNS)]
        cost_ms = image_ms(full)
    without, with_all = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(full_s / plain_s for plain_s, full_s in pairs)
    print_table(
        ["", "value"],
        [
            ("start without, s", f"{without:.2f}"),
            (f"start with {COUNT}, s", f"{with_all:.2f}"),
            ("ratio", f"{ratio:.2f}"),
            ("an idle extension costs an image, ms", f"{cost_ms:.3f}"),
        ],
    )
    met = ratio <= START_GOAL and cost_ms <= IMAGE_GOAL_MS
    goals = {"start_goal": START_GOAL, "image_goal_ms": IMAGE_GOAL_MS, "met": met, "runs": RUNS, "extensions": COUNT}
    write_result("extensions", {"without_s": without, "with_s": with_all, "ratio": ratio, "image_ms": cost_ms, **goals})


if __name__ == "__main__":
    main()
