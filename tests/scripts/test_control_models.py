"""A control model from an extension: loaded through the engine, what it computes reaches the denoiser, and nothing is
left behind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError
from modules.memory.hook_chain import hooks_of
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.request.stages import Stage
from modules.scripts.library import ScriptLibrary
from tests.recordings import CONFIGS, TINY
from tests.scripts.toys import extension, run, small_request

TOY = """
import modules.scripts as scripts
from pathlib import Path

def build(file, model):
    import torch
    from modules.models.loading.auxiliary import AuxiliaryParts
    from modules.models.names.component import Component, on_meta
    from modules.models.names.keymap import KeyMap, ModulePair
    from modules.errors import CheckpointError
    if "net.weight" not in file.entries:
        raise CheckpointError(f"{file.path.name} is no toy control model.")
    width, _ = file.entries["net.weight"].shape[:2]
    with on_meta():
        net = torch.nn.Sequential(torch.nn.Conv2d(4, width, 1))
    return AuxiliaryParts(Component("toy", net, KeyMap([ModulePair("net", "0")]), ("net.",), ""))

class Toy(scripts.Script):
    def title(self):
        return "Toy control"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def ui(self, is_img2img):
        import gradio as gr
        return [gr.Textbox("", label="File"), gr.Slider(0, 1, value=1, label="Weight")]
    def auxiliary_files(self, args):
        return [Path(args[0])] if args[0] else []
    def on_model(self, p, use, file, weight):
        if not file:
            return
        import torch
        import torch.nn.functional as F
        toy = use.auxiliary(Path(file), build)
        Toy.seen = toy
        def control(inputs):
            x = inputs.x.to(toy.device, toy.dtype)
            with torch.no_grad():
                residual = toy.module(F.avg_pool2d(x, 8)) * weight
            inputs.extra["mid_block_additional_residual"] = residual
            inputs.extra["down_block_additional_residuals"] = zeros(use, x)
        use.before_call.append(control)

def zeros(use, x):
    import torch
    unet, side = use.model.unet, x.shape[-1]
    found = [(unet.conv_in.out_channels, side)]
    for block in unet.down_blocks:
        found += [(r.out_channels, side) for r in block.resnets]
        if block.downsamplers:
            side //= 2
            found.append((block.resnets[-1].out_channels, side))
    return tuple(torch.zeros(len(x), width, s, s, device=x.device, dtype=x.dtype) for width, s in found)
"""


@pytest.fixture
def library(tmp_path: Path) -> ScriptLibrary:
    return extension(tmp_path / "extensions", TOY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "toy.safetensors"
    save_file({"net.weight": torch.randn(128, 4, 1, 1), "net.bias": torch.zeros(128)}, path)
    return path


def pixels(result: object) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.asarray(result.samples[0].image).astype(int)  # type: ignore[attr-defined]


def test_a_toy_control_model(engine: Engine, library: ScriptLibrary, file: Path, tmp_path: Path) -> None:
    plain = pixels(run(small_request(alwayson_args={"Toy control": ("", 1.0)}), engine, tmp_path, library))
    wanted = small_request(alwayson_args={"Toy control": (str(file), 1.0)})
    controlled = run(wanted, engine, tmp_path, library)
    assert not controlled.notices and np.abs(pixels(controlled) - plain).max() > 2
    without = run(small_request(alwayson_args={"Toy control": (str(file), 0.0)}), engine, tmp_path, library)
    assert np.abs(pixels(without) - plain).max() <= 1
    assert len(engine.auxiliaries.here) == 1 and hooks_of(engine.model(TINY.name).unet) == []


def test_it_is_kept_between_images_counted_and_freed(
    engine: Engine, library: ScriptLibrary, file: Path, tmp_path: Path
) -> None:
    engine.unload()
    estimator = MemoryEstimator(engine, CONFIGS)
    wanted = small_request(alwayson_args={"Toy control": (str(file), 1.0)})

    def sampling_bytes() -> int:
        return next(need.needs_bytes for need in estimator.plan(wanted).stages if need.stage is Stage.SAMPLE)

    before = sampling_bytes()
    engine.auxiliaries.wanted = library.auxiliary_files
    counted = sampling_bytes() - before
    assert counted == round(file.stat().st_size * 32 / 16)  # computed in fp32
    run(wanted, engine, tmp_path, library)
    (first,) = engine.auxiliaries.here
    run(wanted, engine, tmp_path, library)
    assert [each is first for each in engine.auxiliaries.here] == [True]
    assert first.stored_bytes == 4 * (128 * 4 + 128)
    engine.unload()
    assert not engine.auxiliaries.here


def test_it_is_stored_and_streamed_as_the_model_is(
    engine: Engine, library: ScriptLibrary, file: Path, tmp_path: Path
) -> None:
    wanted = small_request(alwayson_args={"Toy control": (str(file), 1.0)})
    plain = pixels(run(wanted, engine, tmp_path, library))
    streamed = replace(wanted, settings=wanted.settings.with_changes({"stream_weights": "Layers"}))
    assert np.abs(pixels(run(streamed, engine, tmp_path, library)) - plain).max() <= 1
    assert engine.auxiliaries.here[-1].streaming is not None
    stored = replace(
        wanted, settings=wanted.settings.with_changes({"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"})
    )
    run(stored, engine, tmp_path, library)
    assert engine.auxiliaries.here[-1].module[0]._parameters["weight"].dtype == torch.float8_e4m3fn
    engine.unload()


def test_a_file_of_another_kind_is_a_sentence(engine: Engine, library: ScriptLibrary, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"something": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="no toy control model"):
        run(small_request(alwayson_args={"Toy control": (str(path), 1.0)}), engine, tmp_path, library)
