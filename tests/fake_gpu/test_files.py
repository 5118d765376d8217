"""Other files on a made-up GPU: a GGUF checkpoint, an upscaler, and a control network alongside its model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modules.processing.request.request import HiresRequest
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.jobs import engine_of, leave, made, pixels
from tests.models.family_files import family_tensors
from tests.models.gguf_files import write_gguf
from tests.scripts.test_control_nets import controlnet, inputs_of, library, our_outputs
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


def test_an_upscaler_file_works_on_the_card_and_leaves(root: Path, tmp_path: Path, card: FakeCard) -> None:
    save_esrgan(tmp_path / "ESRGAN" / "Big_4x.pth", 4)
    engine = engine_of(root, "sd1")
    upscalers = Upscalers(UpscalerCatalogue({"ESRGAN": tmp_path / "ESRGAN"}), lambda part: CUDA)
    engine.upscalers = upscalers
    hires = HiresRequest(scale=1.5, steps=1, upscaler="Big_4x", denoising_strength=0.5)
    enlarged = pixels(made(engine, "sd1", steps=1, hires=hires))
    assert upscalers.weights_bytes()[1] == CUDA and enlarged.shape[:2] == (96, 96) and enlarged.std() > 1
    upscalers.release()
    leave(engine)
    assert card.memory.tensors == 0


def test_a_control_network_computes_there_too(root: Path, tmp_path: Path, card: FakeCard) -> None:
    net = controlnet("sd1")
    path = tmp_path / "control.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in net.state_dict().items()}, path)
    given, hint = inputs_of(net), torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = net(**given, controlnet_cond=hint, return_dict=False)
    engine = engine_of(root, "sd1", "--no-half")
    engine.model("sd1.safetensors")
    loaded = engine.auxiliary(path, library("nets").build_net)
    there = {name: value.to(CUDA) for name, value in given.items()}
    with torch.inference_mode():
        found = our_outputs(loaded, net, there, hint.to(CUDA))
    for one, other in zip(found, [*expected[0], expected[1]], strict=True):
        assert one.device.type == "cuda"
        torch.testing.assert_close(one.cpu(), other, atol=1e-4, rtol=1e-4)
    del loaded, found, one, there
    engine.auxiliaries.release()
    leave(engine)
    assert card.memory.tensors == 0
