"""What a unit of ControlNet costs over its network's own work, and what 8 bits in the network change of an image.

Run `python -m benchmarks.control_cost [--rounds N] [--cases N]`: the bundled model and its control net, computed in
fp32 on one thread. Cost: a call of the denoiser alone, with the unit, and of the network alone, in turns; the least CPU
time of each counts, since other work on the machine only adds to it. 8 bits: images of cases of `benchmarks.control`
with the network stored in a format, over those with it in 16 bits; the model itself is in 16 bits in both. Writes
`results/control-cost.json`.
"""

import argparse
import base64
import importlib
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fastapi.testclient import TestClient
from PIL import Image

from benchmarks.control import ROOT, unit
from benchmarks.report import print_table, write_result
from lib_workbench.comparison.compare import psnr_db
from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.models.families.denoiser_context import DenoiserContext
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.model_use import ModelCall, ModelUse, PassFacts
from modules.services import Services
from recipes.control.__main__ import FILE
from recipes.control.scoring import ControlCase, control_cases
from recipes.scenes.layout import SIZE_PX

FORMATS = ("fp8_e4m3fn_row", "int8_row")
COST_SIDE_PX, ROWS = 512, 2
COST_GOAL, PSNR_GOAL_DB = 1.02, 40.0


@contextmanager
def program(**settings: Any) -> Iterator[Services]:
    """The whole program on the CPU, computing in fp32."""
    with tempfile.TemporaryDirectory() as data:
        services = build_services(Flags(data_dir=data, use_cpu=("all",), no_half=True, no_hashing=True))
        services.settings.update(settings)
        services.dispatcher.start()
        try:
            yield services
        finally:
            services.dispatcher.close()


def drawn(services: Services, cases: list[ControlCase]) -> list[Image.Image]:
    """The image of each case."""
    images = []
    with TestClient(build_api(services)) as client:
        for case in cases:
            body = {
                **{"prompt": case.prompt, "seed": case.seed, "steps": 20, "cfg_scale": 6, "save_images": False},
                **{"width": SIZE_PX, "height": SIZE_PX, "sampler_name": "DPM++ 2M", "scheduler": "Karras"},
                "alwayson_scripts": {"ControlNet": {"args": [unit(case, FILE.stem)]}},
            }
            reply = client.post("/sdapi/v1/txt2img", json=body)
            reply.raise_for_status()
            images.append(Image.open(io.BytesIO(base64.b64decode(reply.json()["images"][0]))).convert("RGB"))
    return images


def in_8_bits(cases: list[ControlCase]) -> dict[str, dict[str, float]]:
    """How far images are from those of the 16-bit network, by format, in dB."""
    found = {}
    with program() as services:
        wanted = drawn(services, cases)
        for name in FORMATS:
            with program(fp8_storage="Enable", fp8_format=name) as stored:
                model = stored.engine.model(None, PrecisionOptions.of(stored.settings.current))
                assert model.plan.unet_storage == name
                services.engine.auxiliary = stored.engine.auxiliary  # type: ignore[method-assign]
                values = [psnr_db(*pair) for pair in zip(drawn(services, cases), wanted, strict=True)]
            found[name] = {"least_db": round(min(values), 2), "median_db": round(statistics.median(values), 2)}
    return found


@torch.no_grad()
def cost(services: Services, rounds: int) -> dict[str, float]:
    """CPU seconds of a call of the denoiser, alone and with a unit, and of the network alone: the least of `rounds`."""
    reading, maps, files, passes = (
        importlib.import_module(f"lib_controlnet.{name}") for name in ("reading", "maps", "files", "passes")
    )
    model = services.engine.model(None, PrecisionOptions.of(services.settings.current))
    cells, size = COST_SIDE_PX // model.downscale, (COST_SIDE_PX, COST_SIDE_PX)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 4, cells, cells, generator=generator)
    times, hint = torch.full((ROWS,), 500.0), torch.zeros(ROWS, 3, *size)
    context = DenoiserContext(torch.randn(ROWS, 77, model.unet.config.cross_attention_dim, generator=generator))
    path = ROOT / FILE
    values = reading.read_unit({"model": path.stem}, "unit 0")
    each = SimpleNamespace(
        unit=values,
        map=maps.ControlMap(np.zeros((*size, 3), np.uint8), values.resize_mode),
        kind=files.kind_of_file(path),
        file=files.ModelFile(path),
        number=0,
        name="unit 0",
        size_px=size,
        shown_maps={},
        is_reference=False,
    )
    job = SimpleNamespace(settings=services.settings.current, iteration=0, width=size[0], height=size[1])
    facts = PassFacts(("",), ("",), size, 4, 1.0)
    use = ModelUse(model, facts, lambda *_: None, lambda _: None, services.engine.auxiliary)
    found = {"denoiser_s": math.inf, "with_unit_s": math.inf, "network_s": math.inf}

    def see(name: str, call: Callable[[], Any]) -> None:
        began = time.process_time()
        call()
        found[name] = min(found[name], time.process_time() - began)

    def predict() -> Any:
        return model.predict(x, times, context)

    call = ModelCall(tuple(range(ROWS)), (False,) * ROWS, 1, 4)
    for number in range(rounds + 1):
        if number == 1:
            found = dict.fromkeys(found, math.inf)  # the first round loads and warms up
        see("denoiser_s", predict)
        with use.undo, use.calling(call):
            passes.begin_pass([each], job, use, services.scripts.program)
            see("with_unit_s", predict)
        net = services.engine.auxiliaries.here[-1]
        see("network_s", partial(net.module, x, times, context.crossattn, hint, return_dict=False))
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cases", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with program() as services:
        seconds = cost(services, arguments.rounds)
    ratio = (seconds["with_unit_s"] - seconds["denoiser_s"]) / seconds["network_s"]
    formats = in_8_bits(control_cases(arguments.cases))
    result = {
        "side_px": COST_SIDE_PX,
        "rounds": arguments.rounds,
        "cpu_seconds": {name: round(value, 4) for name, value in seconds.items()},
        "unit_over_network": round(ratio, 3),
        "cost_goal": COST_GOAL,
        "cases": arguments.cases,
        "psnr_of_8_bit_network": formats,
        "psnr_goal_db": PSNR_GOAL_DB,
    }
    print_table(("", ""), [(name, str(value)) for name, value in result.items()])
    write_result("control-cost", result)


if __name__ == "__main__":
    main()
