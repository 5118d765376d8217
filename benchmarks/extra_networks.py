"""How quick the cards are with 2,000 adapters: the first look, the list, the first cards on the page, the search.

Run `python -m benchmarks.extra_networks`. Files are generated: safetensors headers as long as those of real networks,
half of them with an image next to, a quarter with notes, in 20 folders. The page is opened in headless Chromium.
"""

import json
import os
import random
import shutil
import socket
import statistics
import struct
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from PIL import Image

from benchmarks.report import print_table, write_result
from modules.adapters.catalogue import AdapterCatalogue
from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.ui.app import mount_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FILES = 2000
FOLDERS = 20
LAYERS = 528  # tensors of a rank-8 LoRA over UNet and text encoder of SD1, up, down and alpha together
TAGS = 300
RUNS = 7
FIRST_CARDS_GOAL_S = 0.5
SEARCH_GOAL_S = 0.1
WORDS = ("ink", "paper", "garden", "portrait", "night", "castle", "river", "teapot", "winter", "glass")
BROWSER = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def generate(folder: Path) -> None:
    """The files, the same in every run."""
    drawn = random.Random(0)
    for number in range(FILES):
        place = folder / f"folder {number % FOLDERS:02d}"
        place.mkdir(parents=True, exist_ok=True)
        name = f"{drawn.choice(WORDS)} {drawn.choice(WORDS)} {number:04d}"
        _adapter(place / f"{name}.safetensors", number)
        if number % 2 == 0:
            Image.new("RGB", (384, 512), (number % 256, 90, 140)).save(place / f"{name}.png")
        if number % 4 == 0:
            notes = {"description": f"a {drawn.choice(WORDS)}", "activation text": name, "preferred weight": 0.8}
            (place / f"{name}.json").write_text(json.dumps(notes), encoding="utf-8")


def _adapter(path: Path, number: int) -> None:
    frequency = {"10_images": {f"tag {tag}": TAGS - tag for tag in range(TAGS)}}
    metadata = {
        "ss_output_name": f"alias_{number:04d}",
        "ss_base_model_version": "sd_v1",
        "ss_tag_frequency": json.dumps(frequency),
        "sshs_model_hash": f"{number:064x}",
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    for layer in range(LAYERS):
        name = f"lora_unet_down_blocks_{layer % 4}_attentions_{layer % 2}_transformer_blocks_0_attn{layer}_to_q.lora_up"
        header[f"{name}.weight"] = {"dtype": "F16", "shape": [1, 1], "data_offsets": [2 * layer, 2 * layer + 2]}
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(2 * LAYERS))


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@contextmanager
def served(data: Path) -> Iterator[str]:
    """The program on these files; yields its address."""
    services = build_services(Flags(data_dir=str(data), use_cpu=("all",)))
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(mount_page(build_api(services), services), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        services.dispatcher.close()


def list_seconds(address: str) -> float:
    """One answer of the list, read to its end."""

    def read() -> None:
        with urllib.request.urlopen(f"{address}/internal/extra-networks?page=lora", timeout=60) as reply:
            assert len(json.loads(reply.read())["cards"]) == FILES

    return seconds(read)


FIRST_CARDS = """
() => new Promise((done) => {
  const tabs = [...document.querySelectorAll("#txt2img_extra_tabs button[role=tab]")];
  const began = performance.now();
  const painted = () => setTimeout(() => done(performance.now() - began));
  const look = () => {
    const card = document.querySelector("#txt2img_lora_cards .card");
    requestAnimationFrame(card && card.offsetParent !== null ? painted : look);
  };
  tabs.find((tab) => tab.textContent === "Lora").click();
  look();
})
"""
SEARCH = """
(text) => new Promise((done) => {
  const field = document.querySelector("#txt2img_lora_extra_search");
  const began = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})
"""


def page_seconds(browser: "Browser", address: str) -> tuple[float, list[float]]:
    """On a fresh page: from the click on the tab to the first cards, and from each letter to what it finds."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector("#txt2img_generate")
    page.wait_for_function("document.querySelector('#fw_scales')?.textContent")
    first = page.evaluate(FIRST_CARDS) / 1000
    word = "garden 0"
    searches = [page.evaluate(SEARCH, word[: length + 1]) / 1000 for length in range(len(word))]
    page.close()
    return first, searches


def browser_part(address: str) -> dict[str, Any]:
    """What needs a browser; empty where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(BROWSER))
        page_seconds(browser, address)  # warm
        runs = [page_seconds(browser, address) for _ in range(RUNS)]
        browser.close()
    first = statistics.median(first for first, _ in runs)
    search = statistics.median(second for _, searches in runs for second in searches)
    slowest = max(second for _, searches in runs for second in searches)
    return {"first_cards_s": first, "search_s": search, "search_slowest_s": slowest}


def main() -> None:
    """Generate, measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        loras = data / "models" / "Lora"
        generate(loras)
        first_look = seconds(lambda: AdapterCatalogue((loras,)))
        catalogue = AdapterCatalogue((loras,))
        again = statistics.median(seconds(catalogue.refresh) for _ in range(RUNS))
        with served(data) as address:
            list_seconds(address)  # warm
            listed = statistics.median(list_seconds(address) for _ in range(RUNS))
            page = browser_part(address)
    result: dict[str, Any] = {
        "files": FILES,
        "runs": RUNS,
        "first_look_s": first_look,
        "look_again_s": again,
        "list_s": listed,
        **page,
        "first_cards_goal_s": FIRST_CARDS_GOAL_S,
        "search_goal_s": SEARCH_GOAL_S,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
    if page:
        result["met"] = page["first_cards_s"] <= FIRST_CARDS_GOAL_S and page["search_s"] <= SEARCH_GOAL_S
    shown = ("first_look_s", "look_again_s", "list_s", "first_cards_s", "search_s", "search_slowest_s")
    print_table(["", "seconds"], [(name, f"{result[name]:.3f}") for name in shown if name in result])
    write_result("extra_networks", result)


if __name__ == "__main__":
    main()
