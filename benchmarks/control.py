"""Whether the shipped control net draws the form of an edge image in the colors of the prompt: 32 cases.

Run `python -m benchmarks.control [--file FILE] [--sheet SHEET.png]`: through the program's own API (txt2img with a unit
of ControlNet, canny, 20 steps, CFG 6, fixed seeds). Writes `results/control.json`. An image is right where it overlaps
the form by 70 %, more than any other form would, and background and form have the asked colors.
"""

import argparse
import base64
import io
import tempfile
from pathlib import Path
from shutil import copy
from typing import Any

import torch
from PIL import Image

from benchmarks.report import print_table, write_result
from recipes.control.__main__ import FILE
from recipes.control.lessons import edges_of
from recipes.control.scoring import ControlCase, control_cases, judged
from recipes.scenes.layout import SHAPES, SIZE_PX

GOAL = 0.9
ROOT = Path(__file__).parent.parent


def unit(case: ControlCase, net: str) -> dict[str, Any]:
    """The unit of ControlNet of a case."""
    stream = io.BytesIO()
    case.control_image().save(stream, format="PNG")
    image = base64.b64encode(stream.getvalue()).decode()
    return {"module": "canny", "model": net, "image": image, "pixel_perfect": True, "save_detected_map": False}


def drawn(file: Path, cases: list[ControlCase]) -> list[Image.Image]:
    """The image of each case, by the whole program on the CPU in fp32."""
    from fastapi.testclient import TestClient

    from modules.api.app import build_api
    from modules.assembly import build_services
    from modules.flags.flags import Flags

    images = []
    with tempfile.TemporaryDirectory() as data:
        folder = Path(data) / "models" / "ControlNet"
        folder.mkdir(parents=True)
        copy(file, folder)
        services = build_services(Flags(data_dir=data, use_cpu=("all",), no_half=True, no_hashing=True))
        services.dispatcher.start()
        try:
            with TestClient(build_api(services)) as client:
                for case in cases:
                    body = {
                        **{"prompt": case.prompt, "seed": case.seed, "steps": 20, "cfg_scale": 6},
                        **{"width": SIZE_PX, "height": SIZE_PX, "sampler_name": "DPM++ 2M", "scheduler": "Karras"},
                        **{"save_images": False},
                        "alwayson_scripts": {"ControlNet": {"args": [unit(case, file.stem)]}},
                    }
                    reply = client.post("/sdapi/v1/txt2img", json=body)
                    reply.raise_for_status()
                    images.append(Image.open(io.BytesIO(base64.b64decode(reply.json()["images"][0]))).convert("RGB"))
        finally:
            services.dispatcher.close()
    return images


def sheet_of(cases: list[ControlCase], images: list[Image.Image], columns: int = 8) -> Image.Image:
    """Pairs of edges and image, as many a row."""
    rows = -(-len(cases) // columns)
    sheet = Image.new("RGB", (columns * SIZE_PX, rows * 2 * SIZE_PX))
    for number, (case, image) in enumerate(zip(cases, images, strict=True)):
        x, y = number % columns * SIZE_PX, number // columns * 2 * SIZE_PX
        sheet.paste(Image.fromarray(edges_of(case.control_image())), (x, y))
        sheet.paste(image, (x, y + SIZE_PX))
    return sheet


def main() -> None:
    """Draw, judge, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("--file", type=Path, default=ROOT / FILE)
    parser.add_argument("--cases", type=int, default=32)
    parser.add_argument("--sheet", type=Path, help="where to write edges and images on one sheet (PNG)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = control_cases(arguments.cases)
    images = drawn(arguments.file, cases)
    found = [judged(case, image) for case, image in zip(cases, images, strict=True)]
    right = [each["form"] and each["colors"] for each in found]
    by_kind = {
        kind: sum(ok for ok, case in zip(right, cases, strict=True) if case.shape.kind == kind) for kind in SHAPES
    }
    result = {
        "cases": len(cases),
        "right_form": sum(each["form"] for each in found),
        "right_colors": sum(each["colors"] for each in found),
        "both": sum(right),
        "goal": GOAL,
        "reached": sum(right) >= GOAL * len(cases),
        "median_overlap": sorted(each["overlap"] for each in found)[len(found) // 2],
        "right_by_form": by_kind,
        "bytes": arguments.file.stat().st_size,
        "wrong": [
            {"form": case.shape.kind, "size": case.shape.size, "prompt": case.prompt, "seed": case.seed, **each}
            for case, each, ok in zip(cases, found, right, strict=True)
            if not ok
        ],
    }
    print_table(("", ""), [(name, str(value)) for name, value in result.items() if name != "wrong"])
    for wrong in result["wrong"]:
        print(wrong)
    if arguments.sheet:
        sheet_of(cases, images).save(arguments.sheet)
    if arguments.cases == len(control_cases()):
        write_result("control", result)


if __name__ == "__main__":
    main()
