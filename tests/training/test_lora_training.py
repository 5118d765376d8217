"""Training a LoRA on the tiny recorded model: what is trained is what is later applied, and the base stays as it is."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from modules.adapters.adapter_facts import digests_of, read_metadata
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable
from modules.cli.lora import main
from modules.errors import CheckpointError, InvalidValueError
from modules.models.families.family import LoraBase
from modules.models.full_precision import FullPrecisionFile
from modules.models.loaded import LoadedModel
from modules.training.base_model import file_hashes, load_base
from modules.training.factors import take_over
from modules.training.file import TrainingRecord, tag_frequency, write_lora
from modules.training.images import LatentSet, encode_images, read_images
from modules.training.options import LoraOptions, TrainingError
from modules.training.trainer import LoraTrainer, train_lora
from recipes.loras.balloon import draw_balloon
from recipes.loras.blueprint import LINE, PAPER, as_blueprint
from recipes.loras.example import EXAMPLES
from tests.recordings import CONFIGS, TINY

CPU = torch.device("cpu")
CAPTIONS = (("a red circle, toy",), ("a blue square, toy",))
QUICK = LoraOptions(rank=4, text_rank=2, conv_rank=2, alpha=2.0, steps=2, batch=2, warmup_steps=1, learning_rate=1e-2)
EVERY_STORAGE = pytest.mark.parametrize("storage", [None, "fp8_e4m3fn", "fp8_e4m3fn_row"])


@pytest.fixture(scope="module")
def plain() -> LoadedModel:
    return load_base(TINY, CONFIGS, None, CPU)


@pytest.fixture(scope="module")
def latents() -> LatentSet:
    return LatentSet(torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1)), CAPTIONS)


@pytest.fixture
def trainer(plain: LoadedModel, latents: LatentSet) -> Iterator[LoraTrainer]:
    trainer = LoraTrainer(plain, QUICK)
    list(train_lora(trainer, latents))
    yield trainer
    trainer.close()


def record(**changes: Any) -> TrainingRecord:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    fields: dict[str, Any] = {
        "name": "toy",
        "base": LoraBase("sd_v1", "stable-diffusion-v1"),
        "base_name": TINY.name,
        "base_hashes": file_hashes(TINY),
        "side_px": 64,
        "captions": CAPTIONS,
        "folder": "toys",
        "steps": 2,
        "started": moment,
        "finished": moment,
        "options": QUICK,
    }
    return TrainingRecord(**(fields | changes))


def stored(model: LoadedModel) -> dict[str, Tensor]:
    return {
        f"{part.name}.{name}": tensor.clone()
        for part in model.components
        for name, tensor in part.module.state_dict().items()
    }


def prediction(model: LoadedModel) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    x, context = torch.randn(1, 4, 8, 8, generator=generator), torch.randn(1, 77, 32, generator=generator)
    width = model.architecture.unet_sizes.context_width
    context = context.repeat(1, 1, -(-width // 32))[..., :width]
    with torch.no_grad():
        predicted: Tensor = model.unet(x, torch.tensor([500]), encoder_hidden_states=context).sample
        return predicted


@EVERY_STORAGE
def test_the_base_is_never_written_and_given_back(storage: str | None, latents: LatentSet) -> None:
    model = load_base(TINY, CONFIGS, storage, CPU)
    weights, before = stored(model), prediction(model)
    trainer = LoraTrainer(model, QUICK)
    assert torch.equal(prediction(model), before)  # a new LoRA changes nothing
    list(train_lora(trainer, latents))
    assert not torch.equal(prediction(model), before)
    trainer.close()
    assert torch.equal(prediction(model), before)
    after = stored(model)
    assert all(torch.equal(after[name].view(torch.uint8), weights[name].view(torch.uint8)) for name in weights)


@EVERY_STORAGE
def test_what_was_trained_is_what_is_applied(storage: str | None, latents: LatentSet, tmp_path: Path) -> None:
    model = load_base(TINY, CONFIGS, storage, CPU)
    without = prediction(model)
    trainer = LoraTrainer(model, QUICK)
    list(train_lora(trainer, latents))
    trained = prediction(model)
    trainer.close()
    write_lora(tmp_path / "toy.safetensors", trainer.factors, record())
    parts = {part.name: (part.module, part.keymap.to_original) for part in model.components if part.name != "vae"}
    applier = AdapterApplier(TargetTable(parts), FullPrecisionFile(model), CPU)
    applier.apply([Use("toy", "x")], {"x": read_adapter_file(tmp_path / "toy.safetensors")}, LoraMode.EXACT)
    assert applier.notices == []  # every layer was found
    applied = prediction(model)
    applier.remove()
    assert float((applied - trained).norm() / (trained - without).norm()) < 0.01  # fp16 in the file


def test_training_lowers_the_loss(plain: LoadedModel, latents: LatentSet) -> None:
    trainer = LoraTrainer(plain, LoraOptions(rank=8, text_rank=0, steps=1000, warmup_steps=1, learning_rate=5e-3))
    captions = [caption for (caption,) in CAPTIONS]
    losses = [trainer.train_step(latents.latents, captions, torch.Generator().manual_seed(1)) for _ in range(8)]
    trainer.close()
    assert losses[-1] < 0.9 * losses[0]


def test_checkpointing_gives_the_same_factors(latents: LatentSet, tmp_path: Path) -> None:
    found = []
    ways = [(None, None), ("all", "ram"), ("every 2", None), ("100 MB", None), ("all but blocks 0, -1", str(tmp_path))]
    for checkpointing, offload in ways:
        model = load_base(TINY, CONFIGS, "fp8_e4m3fn_row", CPU)
        options = LoraOptions(rank=2, steps=1, batch=2, checkpointing=checkpointing, checkpointing_offload=offload)
        trainer = LoraTrainer(model, options)
        list(train_lora(trainer, latents))
        trainer.close()
        assert not any(tmp_path.iterdir())
        found.append([each.up.detach() for each in trainer.factors])
    assert all(torch.allclose(a, b, atol=1e-6) for a, *others in zip(*found, strict=True) for b in others)


def test_a_way_of_checkpointing_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'some' is no way of checkpointing"):
        LoraOptions(checkpointing="some")
    with pytest.raises(InvalidValueError, match="Give --checkpointing too"):
        LoraOptions(checkpointing_offload="ram")


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        (LoraOptions(rank=2, text_rank=0), {"attentions"}),
        (LoraOptions(rank=0, text_rank=2), {"encoder"}),
        (LoraOptions(rank=0, text_rank=0, conv_rank=2), {"resnets", "downsamplers", "upsamplers"}),
    ],
)
def test_a_rank_of_zero_leaves_layers_alone(options: LoraOptions, groups: set[str], plain: LoadedModel) -> None:
    trainer = LoraTrainer(plain, options)
    trainer.close()
    words = {"attentions", "encoder", "resnets", "downsamplers", "upsamplers"}
    assert {word for each in trainer.factors for word in words if f"_{word}_" in each.name} == groups
    assert all(each.name.startswith(("lora_unet_", "lora_te_text_model_encoder_layers_")) for each in trainer.factors)


def test_minutes_end_a_run(plain: LoadedModel, latents: LatentSet) -> None:
    trainer = LoraTrainer(plain, LoraOptions(rank=1, text_rank=0, steps=1000, minutes=1e-6))
    reports = list(train_lora(trainer, latents))
    trainer.close()
    assert [step for step, _ in reports] == [1]


def test_the_files_metadata_is_what_other_programs_read(trainer: LoraTrainer, tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    write_lora(path, trainer.factors, record(trigger="toy"))
    metadata = read_metadata(path)
    assert metadata["ss_network_module"] == "networks.lora"
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("4", "2.0")
    assert metadata["ss_new_sd_model_hash"] == hashlib.sha256(TINY.read_bytes()).hexdigest()
    assert json.loads(metadata["ss_tag_frequency"]) == {"toys": {"toy": 2, "a red circle": 1, "a blue square": 1}}
    assert metadata["sshs_model_hash"] == digests_of(path).tensors
    assert metadata["modelspec.trigger_phrase"] == "toy"
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert {entry["dtype"] for name, entry in header.items() if name != "__metadata__"} == {"F16"}


def test_training_goes_on_from_a_file(trainer: LoraTrainer, tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    write_lora(path, trainer.factors, record())
    trained = [each.up.detach().clone() for each in trainer.factors]
    for each in trainer.factors:
        each.up.data.zero_()
    take_over(trainer.factors, read_adapter_file(path), path.name)
    assert all(torch.allclose(a.up, b, atol=1e-3) for a, b in zip(trainer.factors, trained, strict=True))
    first, *rest = trainer.factors
    for others, said in (
        ([replace(first, alpha=7.0), *rest], "its alpha is 2.0, not 7"),
        (rest, f"{len(rest)} would be trained"),
        ([replace(first, name="lora_unet_other"), *rest], "lora_unet_other has another rank there, or is missing"),
    ):
        with pytest.raises(TrainingError, match=said):
            take_over(others, read_adapter_file(path), path.name)


def test_tags_are_counted_once_an_image() -> None:
    assert tag_frequency([("a, b", "a, c"), ("a",)]) == {"a": 2, "b": 1, "c": 1}


def test_a_loss_that_is_not_finite_is_said(plain: LoadedModel) -> None:
    trainer = LoraTrainer(plain, QUICK)
    bad = LatentSet(torch.full((1, 4, 8, 8), float("nan")), (("x",),))
    with pytest.raises(TrainingError, match=r"step 1\. Choose a lower learning rate"):
        list(train_lora(trainer, bad))
    trainer.close()


def test_factors_beyond_fp16_are_said(trainer: LoraTrainer, tmp_path: Path) -> None:
    with torch.no_grad():
        trainer.factors[0].up.fill_(1e6)
    with pytest.raises(TrainingError, match="fp16's range"):
        write_lora(tmp_path / "toy.safetensors", trainer.factors, record())
    assert not (tmp_path / "toy.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 999}, "rank is 999; it may be 0 to 256"),
        ({"rank": 0, "text_rank": 0}, "nothing to train"),
        ({"alpha": 0.0}, "alpha is 0.0; it may be above 0"),
        ({"steps": 0}, "steps is 0"),
        ({"minutes": 0.0}, "minutes is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"learning_rate": -1.0}, "learning rate is -1"),
        ({"text_learning_rate": 0.0}, "text learning rate is 0"),
        ({"empty_prompts": 1.5}, "empty prompts is 1.5; it may be 0 to 1"),
    ],
)
def test_impossible_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        LoraOptions(**options)


def test_images_are_cut_reduced_and_put_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (90, 40), (0, 0, 0, 0)).save(tmp_path / "b.png")
    Image.new("L", (20, 60), 128).save(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_text("a gray thing\n\nsomething gray\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("nothing", encoding="utf-8")
    first, second = read_images(tmp_path, 32)
    assert first.captions == ("a gray thing", "something gray")
    assert (first.image.size, first.image.mode) == ((32, 32), "RGB")
    assert second.image.getpixel((5, 5)) == (255, 255, 255)


def _no_folder(folder: Path) -> None:
    folder.rmdir()


def _no_caption(folder: Path) -> None:
    Image.new("RGB", (8, 8)).save(folder / "lonely.png")


def _no_image(folder: Path) -> None:
    (folder / "a.png").write_bytes(b"nothing")
    (folder / "a.txt").write_text("a", encoding="utf-8")


def _no_text(folder: Path) -> None:
    _no_caption(folder)
    (folder / "lonely.txt").write_bytes(b"\xff\xfe\xfa")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_no_folder, "is no folder"),
        (lambda folder: None, "holds no images"),
        (_no_caption, r"1 of 1 images have no caption: lonely\.png"),
        (_no_image, r"a\.png is no readable image"),
        (_no_text, r"lonely\.txt is not in UTF-8"),
    ],
)
def test_folders_that_cannot_be_used(prepare: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(TrainingError, match=said):
        read_images(folder, 32)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.safetensors does not exist"):
        load_base(tmp_path / "none.safetensors", CONFIGS, None, CPU)


def test_a_folder_is_trained_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "images", tmp_path / "out" / "mine.safetensors"
    assert main(["draw", "balloon", "--folder", str(folder), "--images", "2"]) == 0
    words = ["train", str(folder), "--checkpoint", str(TINY), "--side", "64", "--rank", "2", "--batch", "1"]
    assert main([*words, "--output", str(output), "--steps", "1", "--trigger", "balloon"]) == 0
    assert read_metadata(output)["ss_output_name"] == "mine"
    assert json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["activation text"] == "balloon"
    assert main([*words, "--output", str(tmp_path / "mine.pt")]) == 1
    assert main([*words[:4], "--side", "65", "--output", str(output)]) == 1
    assert main(["draw", "ballon", "--folder", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "must be a .safetensors file" in said
    assert "must be a multiple of" in said
    assert "Did you mean 'balloon'?" in said


def test_encoding_gives_scaled_means(plain: LoadedModel, tmp_path: Path) -> None:
    example = EXAMPLES.get("balloon")
    images = [example.draw(Random(seed)) for seed in range(3)]
    small = [type(p)(p.image.resize((64, 64)), p.captions) for p in images]
    found = encode_images(plain, small, batch=2)
    assert found.latents.shape == (3, 4, 8, 8)
    pixels = torch.from_numpy(np.array(small[2].image)).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.no_grad():
        wanted = plain.vae.encode(pixels).latent_dist.mean * plain.architecture.latent.scale_factor
    assert torch.allclose(found.latents[2:], wanted, atol=1e-3)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples_draw_the_same_from_the_same_seed(name: str) -> None:
    draw = EXAMPLES.get(name).draw
    one, again, other = draw(Random(3)), draw(Random(3)), draw(Random(4))
    assert one.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert one.captions == again.captions
    assert one.image.size == (128, 128)
    drawn = [draw(Random(seed)) for seed in range(40)]
    share = sum(EXAMPLES.get(name).activation in image.captions[0] for image in drawn) / len(drawn)
    assert share == 1.0 if name == "blueprint" else 0.6 < share < 0.95


def test_a_blueprint_has_lines_where_colours_meet() -> None:
    image = Image.new("RGB", (64, 64), "red")
    image.paste("green", (32, 0, 64, 64))
    blueprint = as_blueprint(image)
    assert blueprint.getpixel((10, 30)) == PAPER
    assert blueprint.getpixel((31, 30)) == LINE


def test_a_balloon_has_an_envelope_with_a_stripe_and_a_basket() -> None:
    image = draw_balloon(Image.new("RGB", (128, 128), "black"), (200, 0, 0), (0, 0, 200), 64, 50, 30)
    assert image.getpixel((64, 50)) == (0, 0, 200)
    assert image.getpixel((40, 50)) == image.getpixel((88, 50)) == (200, 0, 0)
    assert image.getpixel((64, 100)) not in ((0, 0, 0), (0, 0, 200))
    assert image.getpixel((64, 110)) == (0, 0, 0)
