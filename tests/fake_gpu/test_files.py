"""Files beside a checkpoint, or of another format, on a made-up GPU: GGUF, control nets of a UNet and of a transformer,
and an upscaler; also where memory runs out."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.stages import Stage
from modules.scripts.library import ScriptLibrary, read_args
from modules.scripts.program import Program
from modules.scripts.running import run_with_scripts
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.failing import Failing
from tests.fake_gpu.jobs import engine_of, leave, made, pixels, request_of
from tests.models.family_files import family_tensors
from tests.models.gguf_files import write_gguf
from tests.scripts.test_control_nets import controlnet
from tests.scripts.test_detailer import BUILT_IN
from tests.scripts.test_transformer_nets import control_lora, flux_net
from tests.thorough import thoroughly
from tests.upscalers.models import save_esrgan

CUDA = torch.device("cuda")
STREAMED = {"stream_weights": "Layers"}


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_gpu("cuda", 8) as card:
        yield card


def test_gguf_blocks_are_decoded_on_the_card(root: Path, tmp_path: Path, card: FakeCard) -> None:
    write_gguf(tmp_path / "sd1.gguf", family_tensors("sd1"), "Q8_0", "sd1")
    results = []
    for settings in ({}, STREAMED):
        engine = engine_of(root, "sd1", checkpoints=tmp_path)
        results.append(pixels(made(engine, "sd1", settings, steps=1, checkpoint="sd1.gguf")))
        assert card.memory.allocated < 2 * sum(tensor.numel() for tensor in family_tensors("sd1").values())
        leave(engine)
        assert card.memory.tensors == 0
    assert results[0].std() > 1 and np.array_equal(results[0], results[1])


# -- control nets --------------------------------------------------------------------------------------------------


def controlled(root: Path, family: str, folder: Path, events: Any, settings: dict[str, Any], engine: Engine) -> Result:
    """A whole job with a unit of the extension ControlNet, its net in `folder`."""
    library = ScriptLibrary.load([BUILT_IN], [path.name for path in BUILT_IN.iterdir() if path.name != "controlnet"])
    for script in library.scripts:
        script.program = Program(folders=lambda kind: (folder,))
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(data, "PNG")
    unit = {"enabled": True, "module": "none", "model": "net", "image": base64.b64encode(data.getvalue()).decode()}
    script = library.find_alwayson("ControlNet", False)
    args = {script.title(): read_args(script, [unit], script.title())}
    checkpoint = {"checkpoint": "sd1.gguf"} if (folder / "sd1.gguf").is_file() else {}
    request = request_of(family, settings, steps=1, alwayson_args=args, **checkpoint)
    return run_with_scripts(request, engine, Output(folder), events, library)


def write_net(root: Path, family: str, path: Path) -> None:
    """The file of a control net that fits the family's tiny model."""
    if family == "flux1":
        engine = engine_of(root, family)
        net = flux_net("InstantX", engine.model("flux1.safetensors"))
        engine.unload()
    else:
        net = controlnet(family)
    save_file({key: tensor.contiguous() for key, tensor in net.state_dict().items()}, path)


def stored_as(name: str) -> dict[str, Any]:
    return {"fp8_storage": "Enable", "fp8_format": name}


@pytest.mark.parametrize(
    ("family", "settings", "is_gguf"),
    [
        ("sdxl", stored_as("int8_row"), False),
        ("sd1", {}, True),
        ("flux1", {}, False),
        *(thoroughly("sd1", stored_as(name), False) for name in ("code4", "fp8_e4m3fn_row")),
        thoroughly("flux1", stored_as("code4"), False),
    ],
)
def test_a_job_with_a_control_net(
    root: Path, tmp_path: Path, family: str, settings: dict[str, Any], is_gguf: bool
) -> None:
    """Resident, streamed, and where memory runs out while it samples: the same image."""
    write_net(root, family, tmp_path / "net.safetensors")
    if is_gguf:
        write_gguf(tmp_path / "sd1.gguf", family_tensors("sd1"), "Q8_0", "sd1")
    checkpoints = tmp_path if is_gguf else None
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, family, checkpoints=checkpoints)
        more = {"checkpoint": "sd1.gguf"} if is_gguf else {}
        plain = pixels(made(engine, family, settings, steps=1, **more))
        resident = pixels(controlled(root, family, tmp_path, Silent(), settings, engine))
        assert resident.std() > 1 and not np.array_equal(resident, plain)
        failing = Failing(card, Stage.SAMPLE)
        assert np.array_equal(pixels(controlled(root, family, tmp_path, failing, settings, engine)), resident)
        assert failing.is_done and card.memory.failures == 1
        leave(engine)
        engine = engine_of(root, family, checkpoints=checkpoints)
        streamed = controlled(root, family, tmp_path, Silent(), {**settings, **STREAMED}, engine)
        assert np.array_equal(pixels(streamed), resident)
        del streamed
        leave(engine)
        assert card.memory.allocated < 1 << 20


def test_a_job_with_a_control_lora(root: Path, tmp_path: Path) -> None:
    """FLUX.1 with a change of every layer: resident, streamed and stored in 8 bits, and nothing stays behind."""
    engine = engine_of(root, "flux1")
    lora, _ = control_lora(engine.model("flux1.safetensors"))
    engine.unload()
    save_file({key: tensor.contiguous() * 0.3 for key, tensor in lora.items()}, tmp_path / "net.safetensors")
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, "flux1")
        plain = pixels(made(engine, "flux1", {}, steps=1))
        resident = pixels(controlled(root, "flux1", tmp_path, Silent(), {}, engine))
        assert resident.std() > 1 and not np.array_equal(resident, plain)
        assert np.array_equal(pixels(made(engine, "flux1", {}, steps=1)), plain)
        assert np.array_equal(pixels(controlled(root, "flux1", tmp_path, Silent(), STREAMED, engine)), resident)
        stored = pixels(controlled(root, "flux1", tmp_path, Silent(), stored_as("int8_row"), engine))
        assert 0 < np.abs(stored.astype(int) - resident).mean() < 8
        leave(engine)
        assert card.memory.allocated < 1 << 20


# -- upscalers -----------------------------------------------------------------------------------------------------


def test_an_upscaler_file_works_on_the_card_and_leaves(root: Path, tmp_path: Path, card: FakeCard) -> None:
    """Also where memory runs out in it."""
    save_esrgan(tmp_path / "ESRGAN" / "Big_4x.pth", 4)
    engine = engine_of(root, "sd1")
    upscalers = Upscalers(UpscalerCatalogue({"ESRGAN": tmp_path / "ESRGAN"}), lambda part: CUDA)
    engine.upscalers = upscalers
    hires = HiresRequest(scale=1.5, steps=1, upscaler="Big_4x", denoising_strength=0.5)
    request = request_of("sd1", steps=1, hires=hires)
    enlarged = pixels(generate(request, engine, Output(tmp_path), Silent()))
    assert upscalers.weights_bytes("Big_4x")[1] == CUDA and enlarged.shape[:2] == (96, 96) and enlarged.std() > 1
    failing = Failing(card, Stage.ENLARGE)
    again = generate(request, engine, Output(tmp_path), failing)
    assert failing.is_done and card.memory.failures == 1 and np.array_equal(pixels(again), enlarged)
    upscalers.release()
    leave(engine)
    assert card.memory.tensors == 0
