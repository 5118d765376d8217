"""The history with 100,000 entries: how long searches and a page of thumbnails take, and an import.

    python -m benchmarks.history [--entries 100000] [--out benchmarks/results/history.json]

Entries are drawn: prompts of a vocabulary of 400 words, some models, LoRAs, samplers, steps, sizes and seeds. Times are
the median of 9 asks, in milliseconds; the page of thumbnails is 60 images, from the file that keeps them.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from modules.history.importing import Importer
from modules.history.store import PAGE, History, ImageFile
from modules.history.thumbnails import Thumbnails, small_copy

SEARCHES = {
    "the newest": "",
    "a common word": "w1",
    "a rare word": "w399",
    "a phrase": '"w1 w2"',
    "a range of steps": "steps:>20",
    "a model": "model:model-3",
    "a LoRA and fp8": "lora:lora-7 fp8:on",
    "a seed": "seed:12345",
    "a month": "date:2026-03",
    "everything at once": 'steps:>20 model:model lora:lora fp8:on date:2026-03 "w1"',
    "without": "-model:model-3 -w1",
    "nothing": "w1 model:nothing",
}
ASKS = 9
IMPORTED = 500
CONNECTIONS = 6  # of a browser to one server


def drawn(number: int, draw: random.Random, start: float) -> ImageFile:
    """One entry."""
    words = " ".join(f"w{int(400 * draw.random() ** 2)}" for _ in range(draw.randint(8, 40)))
    lora = f" <lora:lora-{draw.randint(0, 40)}:0.8>" if draw.random() < 0.4 else ""
    fields = {
        "Steps": draw.choice((8, 20, 25, 30, 50)),
        "Sampler": draw.choice(("Euler a", "DPM++ 2M", "DPM++ SDE", "UniPC")),
        "Schedule type": draw.choice(("Karras", "Automatic")),
        "CFG scale": draw.choice((1.0, 5.0, 7.0, 7.5)),
        "Seed": draw.randrange(2**32) if number % 1000 else 12345,
        "Size": draw.choice(("512x512", "1024x1024", "832x1216")),
        "Model hash": f"{number % 12:010x}",
        "Model": f"model-{number % 12}",
        "Version": "featherweight",
    }
    if draw.random() < 0.3:
        fields |= {"FP8 weight": "Enable", "FP8 format": "fp8_e4m3fn_row"}
    infotext = f"{words}{lora}\nNegative prompt: blurry, low quality\n" + ", ".join(
        f"{k}: {v}" for k, v in fields.items()
    )
    return ImageFile(
        path=Path(f"/images/2026/{number:06}.png"),
        fingerprint=f"{number:064x}",
        width=512,
        height=512,
        size_bytes=400_000,
        changed_at=start,
        infotext=infotext,
        created_at=start + number * 300,
    )


def median_ms(work: Callable[[], object]) -> float:
    """The median time of some asks."""
    times = []
    for _ in range(ASKS):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 2)


def fresh_page_ms(folder: Path) -> float:
    """A page of thumbnails that nobody has made, of PNGs of 512 px (smooth, with some noise), asked for as a browser
    does: six at a time."""
    drawn = Image.effect_mandelbrot((512, 512), (-2.0, -1.5, 1.0, 1.5), 60).convert("L")
    noise = Image.effect_noise((512, 512), 4)
    image = Image.merge("RGB", [Image.blend(drawn.rotate(turn), noise, 0.3) for turn in (0, 90, 180)])
    paths = [folder / f"fresh-{number}.png" for number in range(PAGE)]
    for number, path in enumerate(paths):
        image.putpixel((0, 0), (number, 0, 0))
        image.save(path)
    with ThreadPoolExecutor(CONNECTIONS) as browser:

        def look() -> None:
            thumbnails = Thumbnails(None)
            list(browser.map(lambda path: thumbnails.of(path.name, path), paths))
            thumbnails.close()

        return median_ms(look)


def measured(entries: int, folder: Path) -> dict[str, Any]:
    """All numbers."""
    draw = random.Random(1)
    history = History(folder / "history.sqlite", folder / "trash")
    start = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, -1))
    began = time.perf_counter()
    for first in range(0, entries, 1000):
        history.add([drawn(number, draw, start) for number in range(first, min(first + 1000, entries))])
    filled_s = time.perf_counter() - began
    searches = {name: median_ms(lambda text=text: history.search(text)) for name, text in SEARCHES.items()}  # type: ignore[misc]
    counts = {name: history.count(text) for name, text in SEARCHES.items()}
    thumbnails = Thumbnails(folder / "thumbnails.sqlite")
    plain = small_copy(Image.effect_noise((512, 512), 60).convert("RGB"))
    for number in range(0, entries, 20):
        thumbnails.keep(f"{number:064x}", plain)
    keys = [f"{number:064x}" for number in range(0, entries, 20)][-PAGE:]
    page = median_ms(lambda: [thumbnails.kept(key) for key in keys])
    source = folder / "old"
    source.mkdir()
    noise = Image.effect_noise((256, 256), 60).convert("RGB")
    for number in range(IMPORTED):
        noise.putpixel((0, 0), (number % 256, number // 256, 0))
        noise.save(source / f"{number}.png", compress_level=1)
    made = median_ms(lambda: [small_copy(noise) for _ in range(PAGE)])
    fresh = fresh_page_ms(folder)
    importer = Importer(history, thumbnails)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        importer.add(source)
        importer.wait(600)
        times.append(time.perf_counter() - began)
    importer.close()
    history.close()
    return {
        "entries": entries,
        "file_mb": round((folder / "history.sqlite").stat().st_size / 1e6, 1),
        "added_per_s": round(entries / filled_s),
        "search_ms": searches,
        "found": counts,
        "page_of_thumbnails_ms": page,
        "page_of_thumbnails_made_of_256px_ms": made,
        "page_of_fresh_thumbnails_of_512px_pngs_ms": fresh,
        "import_files_per_s": round(IMPORTED / times[0]),
        "second_look_files_per_s": round(IMPORTED / times[1]),
    }


def main() -> None:
    """Measure and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "history.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = measured(options.entries, Path(folder))
    options.out.write_text(json.dumps(numbers, indent=1) + "\n")
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
