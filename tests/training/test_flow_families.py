"""Training for families of transformers that predict a flow: one step equals diffusers', encoders and denoiser are
never in memory together, and the files are those that others read."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ErnieImagePipeline
from diffusers.loaders.lora_conversion_utils import (
    _convert_kohya_flux2_lora_to_diffusers,
    _convert_kohya_flux_lora_to_diffusers,
    _convert_non_diffusers_anima_lora_to_diffusers,
    _convert_non_diffusers_flux3_lora_to_diffusers,
    _convert_non_diffusers_qwen_lora_to_diffusers,
    _convert_non_diffusers_z_image_lora_to_diffusers,
)
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from lib_training.base_model import load_base
from lib_training.config import LossConfig, TrainingConfig, config_of
from lib_training.objective import Objective
from lib_training.run import Places, Progress, TrainingRun, run_training
from lib_training.stepping import Batch
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable
from modules.errors import InvalidValueError
from modules.models.files.header import read_metadata
from tests.adapters.test_fused_layers import NoFullPrecision
from tests.models.dit_files import write_split
from tests.models.dit_models import TINY, write_parts
from tests.processing.test_anima import modules as anima_modules
from tests.processing.test_anima import write_anima
from tests.processing.test_ernie_image import modules as ernie_image_modules
from tests.processing.test_ernie_image import write_ernie_image
from tests.processing.test_flux3 import modules as flux3_modules
from tests.processing.test_flux3 import write_flux3
from tests.processing.test_qwen_image import modules as qwen_image_modules
from tests.processing.test_qwen_image import write_qwen_image
from tests.processing.test_qwen_image21 import modules as qwen_image21_modules
from tests.processing.test_qwen_image21 import write_qwen_image21
from tests.recordings import CONFIGS
from tests.thorough import thoroughly
from tests.training.test_gradients import PlainLora, difference, randomised

TINY_SD1 = Path(__file__).parents[1] / "reference" / "models" / "tiny-sd1.safetensors"
SIDE = 64
CAPTIONS = ("a toy", "a much longer caption, with a red toy on green grass", "red")
Convert = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """A family: how its tiny files are written, diffusers' converter of its LoRAs, and a layer in our files."""

    write: Callable[[Path], Path]
    convert: Convert
    layer: str


def tiny(name: str) -> Callable[[Path], Path]:
    return lambda root: write_parts(root, TINY[name])


FUSED = "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"
CASES = {
    "z_image": Case(
        lambda root: write_split(root, "zimage-turbo-cfg1"),
        _convert_non_diffusers_z_image_lora_to_diffusers,
        "diffusion_model.layers.0.attention.to_q.lora_A.weight",
    ),
    "klein": Case(tiny("klein"), _convert_kohya_flux2_lora_to_diffusers, FUSED),
    "dev": Case(tiny("dev"), _convert_kohya_flux_lora_to_diffusers, FUSED),
    "chroma": Case(tiny("chroma"), _convert_kohya_flux_lora_to_diffusers, FUSED),
    "anima": Case(
        lambda root: write_anima(root, anima_modules()),
        _convert_non_diffusers_anima_lora_to_diffusers,
        "diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight",
    ),
    "qwen_image": Case(
        lambda root: write_qwen_image(root, qwen_image_modules()),
        _convert_non_diffusers_qwen_lora_to_diffusers,
        "diffusion_model.transformer_blocks.0.attn.to_q.lora_A.weight",
    ),
    "qwen_image21": Case(
        lambda root: write_qwen_image21(root, qwen_image21_modules()),
        _convert_non_diffusers_qwen_lora_to_diffusers,
        "diffusion_model.transformer_blocks.0.img_mlp.gate_layer.lora_A.weight",
    ),
    "flux3_klein": Case(
        lambda root: write_flux3(root, flux3_modules()),
        _convert_non_diffusers_flux3_lora_to_diffusers,
        "diffusion_model.content_mode_blocks.image.0.q_proj.lora_A.weight",
    ),
    "ernie_image": Case(
        lambda root: write_ernie_image(root, ernie_image_modules()),
        ErnieImagePipeline.lora_state_dict,
        "diffusion_model.layers.0.self_attention.to_q.lora_A.weight",
    ),
}


@dataclass(frozen=True)
class Base:
    """A family's files, and what is kept of its encodings between the tests."""

    name: str
    checkpoint: Path
    folder: Path

    def places(self, name: str) -> Places:
        folder = self.folder / name
        return Places(CONFIGS, folder / "Lora", folder / "embeddings", self.folder / "cache")

    def config(self, **sections: Any) -> TrainingConfig:
        whole: dict[str, Any] = {
            "model": {"checkpoint": str(self.checkpoint), "device": "cpu", "storage": "fp32"},
            "adapter": {"rank": 2, "alpha": 1.0},
            "data": {"folders": [str(self.folder / "images")], "resolution": SIDE},
            "training": {"steps": 2, "warmup": 1, "learning_rate": 1e-2, "batch": 2},
            "output": {"name": "toy", "validate_every": 0},
        }
        for name, section in sections.items():
            whole[name] = {**whole.get(name, {}), **section}
        return config_of(whole)

    def run(self, name: str, **sections: Any) -> TrainingRun:
        return TrainingRun(self.config(**sections), self.places(name), lambda progress: None)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    known: dict[str, Base] = {}

    def base(name: str) -> Base:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            (folder / "images").mkdir()
            random = np.random.default_rng(1)
            for index, caption in enumerate(CAPTIONS):
                pixels = random.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / f"{index}.png")
                (folder / "images" / f"{index}.txt").write_text(caption, encoding="utf-8")
            known[name] = Base(name, CASES[name].write(folder / "models"), folder)
        return known[name]

    return base


def first_batch(run: TrainingRun) -> Batch:
    _, samples = next(iter(run.dataset.batches_from((0, 0))))
    return run.batch(run.dataset.items(samples, "a"))


@pytest.mark.parametrize("name", [*(name for name in CASES if name != "chroma"), thoroughly("chroma")])
def test_what_was_trained_on_8_bits_streamed_is_what_the_file_does(bases: Any, name: str) -> None:
    """The encoders are not in memory with the denoiser, and the file's names are those that others read."""
    base, case = bases(name), CASES[name]
    run = base.run("streamed", model={"storage": "int8_row", "stream": "layers"})
    parts = [*run.model.text_encoders.values(), run.model.vae]
    assert all(weight.is_meta for part in parts for weight in part.parameters())
    (file,) = run.finish().files
    context = run.trainer.context(first_batch(run))
    channels, size = run.model.latent_channels, run.model.latent_size((SIDE, SIDE))
    x = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        trained = run.model.predict_once(x, torch.tensor([700.0, 300.0]), context)
        run.trainer.close()
        without = run.model.predict_once(x, torch.tensor([700.0, 300.0]), context)
        table = TargetTable({c.name: (c.module, c.keymap.to_original) for c in run.model.components})
        applier = AdapterApplier(table, NoFullPrecision(), torch.device("cpu"))
        applier.apply([Use("a", "a")], {"a": read_adapter_file(file)}, LoraMode.EXACT)
        found = run.model.predict_once(x, torch.tensor([700.0, 300.0]), context)
    assert applier.notices == []
    applier.remove()
    run.close()
    effect = (trained - without).norm()
    assert effect > 1e-3 * without.norm()
    assert (found - trained).norm() < 0.01 * effect  # the file has 16 bits
    tensors = load_file(file)
    assert case.layer in tensors
    paths = {path for path, _ in run.model.unet.named_modules()}
    known_width = {
        key: tensor for key, tensor in tensors.items() if "linear1" not in key
    }  # 3072 in diffusers, for FLUX.1
    for key in case.convert(known_width):
        path = key.removeprefix("transformer.").partition(".lora_")[0]
        assert path in paths, key


def plain_prediction(name: str, module: Any, x: Tensor, sigma: Tensor, batch: Batch) -> Tensor:
    """What diffusers' transformer makes of noisy latents, called as its pipelines call it."""
    assert batch.conditionings is not None
    tokens = [each.crossattn for each in batch.conditionings]
    if name == "z_image":
        outputs = module([image[:, None] for image in x], 1 - sigma, tokens, return_dict=False)[0]
        return -torch.stack([output.squeeze(1) for output in outputs])
    height, width = x.shape[-2:]
    rows, columns = (
        grid.flatten() for grid in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    )
    zeros = torch.zeros_like(rows)
    places = torch.stack([zeros, rows, columns, zeros], dim=1)
    texts = torch.zeros(512, 4, dtype=torch.long)
    texts[:, 3] = torch.arange(512)
    output = module(
        hidden_states=x.flatten(2).transpose(1, 2),
        encoder_hidden_states=torch.stack(tokens),
        timestep=sigma,
        img_ids=places,
        txt_ids=texts,
        return_dict=False,
    )[0]
    found: Tensor = output.transpose(1, 2).reshape(x.shape)
    return found


@pytest.mark.parametrize(("name", "shift"), [("z_image", 3.0), ("klein", float(np.exp(2.02)))])
def test_one_step_equals_diffusers(bases: Any, name: str, shift: float) -> None:
    run = bases(name).run("step")
    trainer, reference = randomised(run.trainer), run.model.unet
    batch = first_batch(run)
    generator = torch.Generator().manual_seed(5)
    timesteps = trainer.objective.draw_timesteps(2, generator)
    noise = trainer.objective.draw_noise(tuple(batch.latents.shape), generator)
    loss = trainer.gradients([batch], seed=5)
    found = [parameter.grad.clone() for parameter in trainer.parameters if parameter.grad is not None]
    layers, paths = trainer.layers, {id(layer): path for path, layer in reference.named_modules()}
    trainer.close()
    wrapped = []
    for each in layers:
        down, up = each.parameters["lora_down.weight"], each.parameters["lora_up.weight"]
        plain = PlainLora(each.layer, down, up, each.alpha / len(down))
        parent, _, own = paths[id(each.layer)].rpartition(".")
        setattr(reference.get_submodule(parent), own, plain)
        wrapped.append(plain)
    sigma = timesteps.add(1).double() / trainer.objective.count
    sigma = (shift * sigma / (1 + (shift - 1) * sigma)).float()
    share = sigma.view(-1, 1, 1, 1)
    x = (1 - share) * batch.latents + share * noise
    expected = F.mse_loss(plain_prediction(name, reference, x, sigma, batch), noise - batch.latents)
    torch.autograd.backward(expected)
    wanted = [gradient for each in wrapped for gradient in (each.down.grad, each.up.grad) if gradient is not None]
    run.close()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert len(found) == len(wanted)
    assert difference(found, wanted) < 1e-4


def test_the_loss_of_images_that_are_learnt_by_heart_falls(bases: Any) -> None:
    run = bases("z_image").run(
        "heart", adapter={"rank": 8, "alpha": 8.0}, training={"steps": 15, "learning_rate": 2e-2}, loss={"type": "l2"}
    )
    batch = first_batch(run)
    noise, timesteps = (
        torch.randn(batch.latents.shape, generator=torch.Generator().manual_seed(4)),
        torch.tensor([500, 800]),
    )

    def loss() -> float:
        with torch.no_grad():
            return float(run.trainer.image_losses(batch, noise, timesteps).mean())

    before = loss()
    run.finish()
    after = loss()
    run.close()
    assert after < 0.8 * before


def test_a_training_that_was_cut_off_goes_on_and_draws_between_its_steps(bases: Any) -> None:
    base, sections = bases("klein"), {"model": {"storage": "fp8_e4m3fn_row"}, "training": {"steps": 3}}
    drawn = {"output": {"sample_every": 3, "prompts": ["a toy"], "save_every": 1}}

    def cut(progress: Progress) -> None:
        if progress.phase.startswith("step 2 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(base.config(**sections, **drawn), base.places("cut"), cut)
    finished = run_training(base.config(**sections, **drawn), base.places("cut"))
    assert "Resumed at step 2." in finished.notices
    with Image.open(finished.files[0].with_suffix(".png")) as preview:
        assert preview.size == (SIDE, SIDE)
    whole = run_training(base.config(**sections), base.places("whole"))
    one, other = load_file(finished.files[0]), load_file(whole.files[0])
    assert all(torch.equal(one[key], other[key]) for key in other)
    assert read_metadata(finished.files[0])["modelspec.architecture"] == "Flux.2-klein/lora"


def test_a_file_with_the_scale_in_its_factors_is_trained_further(bases: Any) -> None:
    base = bases("z_image")
    first = base.run("further", training={"steps": 1})
    (file,) = first.finish().files
    values = [parameter.detach().clone() for parameter in first.trainer.parameters]
    first.close()
    again = base.run("again", adapter={"start": str(file)})
    found = again.trainer.parameters
    for one, other in zip(values, found, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=2e-3, atol=1e-6)
    again.close()


@pytest.mark.parametrize("adapter", [{"text_rank": 2}, {"type": "textual_inversion"}])
def test_encoders_that_cannot_be_trained_are_named(bases: Any, adapter: dict[str, Any]) -> None:
    config = bases("z_image").config()
    asked = replace(config, adapter=replace(config.adapter, **adapter))
    with pytest.raises(InvalidValueError, match=r"text encoders of .* are not trained"):
        TrainingRun(asked, bases("z_image").places("refused"), lambda progress: None)


def test_files_of_parts_and_the_shift_can_be_chosen(bases: Any) -> None:
    base, cpu = bases("z_image"), torch.device("cpu")
    (vae,) = (base.folder / "models" / "VAE").iterdir()
    other = Path(shutil.copy(vae, base.folder / "other.safetensors"))
    model = load_base(base.checkpoint, CONFIGS, None, cpu, reads=lambda name: name == "vae", modules=(other,))
    assert other in model.part_files and vae not in model.part_files
    levels = Objective.of(model, LossConfig(shift=1.0), (8, 8)).levels
    torch.testing.assert_close(levels.sigmas[499], torch.tensor(0.5))
    noise_model = load_base(TINY_SD1, CONFIGS, None, cpu, reads=lambda name: name == "vae")
    with pytest.raises(InvalidValueError, match=r"loss\.shift is for flow models"):
        Objective.of(noise_model, LossConfig(shift=3.0), (8, 8))
