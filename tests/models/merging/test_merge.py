"""Merges of toy models: numbers against the formulas, memory, what is left behind, and every refusal."""

import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import lib_workbench.merging.merged
from lib_workbench.merging.request import MergeOptions
from modules.errors import CheckpointError, Interrupted, InvalidValueError, OutputError
from modules.models.files.tensor_file import TensorEntry, TensorFile
from modules.models.files.tensor_writer import TensorWriter
from tests.models.merging.toys import CONV_IN, POSITIONS, SCHEDULE, TEXT, UNET, VAE, Toys, toy

WEIGHTS = (CONV_IN, UNET, TEXT, VAE)
WEIGHTED = MergeOptions(primary="a", secondary="b", name="merged", storage="fp32")
DIFFERENCE = MergeOptions(
    primary="a", secondary="b", tertiary="c", method="Add difference", name="merged", storage="fp32", multiplier=0.5
)
ALONE = MergeOptions(primary="a", method="No interpolation", name="merged", storage="fp32")


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    toys = Toys(tmp_path)
    toys.add_three()
    return toys


def changed(options: MergeOptions, **fields: Any) -> MergeOptions:
    return MergeOptions(**{**vars(options), **fields})


def merged(toys: Toys, options: MergeOptions) -> dict[str, Tensor]:
    return load_file(toys.merge(options).path)


@pytest.mark.parametrize("multiplier", [0.0, 0.3, 1.0])
def test_the_weighted_sum_is_the_formula_in_float32(toys: Toys, multiplier: float) -> None:
    result = merged(toys, changed(WEIGHTED, multiplier=multiplier))
    a, b = toy(0), toy(1)
    for name in WEIGHTS:
        expected = a[name].float() * (1 - multiplier) + b[name].float() * multiplier
        assert torch.equal(result[name], expected), name


def test_the_difference_is_the_formula_in_float32(toys: Toys) -> None:
    result = merged(toys, DIFFERENCE)
    a, b, c = toy(0), toy(1), toy(2)
    for name in WEIGHTS:
        assert torch.equal(result[name], a[name].float() + (b[name].float() - c[name].float()) * 0.5), name


def test_sixteen_bits_are_rounded_once(toys: Toys) -> None:
    wide = merged(toys, WEIGHTED)
    for storage, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        narrow = merged(toys, changed(WEIGHTED, storage=storage, name=storage))
        assert all(torch.equal(narrow[name], wide[name].to(dtype)) for name in WEIGHTS)


def test_schedules_and_position_ids_are_those_of_a_untouched(toys: Toys) -> None:
    result = merged(toys, changed(WEIGHTED, storage="fp16"))
    assert torch.equal(result[POSITIONS], toy(0)[POSITIONS])
    assert torch.equal(result[SCHEDULE], toy(0)[SCHEDULE])


def test_no_interpolation_is_a_conversion(toys: Toys) -> None:
    result = merged(toys, ALONE)
    assert all(torch.equal(result[name], toy(0)[name].float()) for name in WEIGHTS)


def test_ckpt_files_take_part(toys: Toys) -> None:
    toys.add("old.ckpt", toy(1))
    expected = merged(toys, WEIGHTED)
    assert all(
        torch.equal(tensor, expected[name])
        for name, tensor in merged(toys, changed(WEIGHTED, secondary="old", name="other")).items()
    )


def test_the_oldest_names_of_the_text_model_are_understood(toys: Toys) -> None:
    renamed = {name.replace("text_model.", ""): tensor for name, tensor in toy(1).items()}
    toys.add("oldest.safetensors", renamed)
    result = merged(toys, changed(WEIGHTED, secondary="oldest"))
    assert torch.equal(result[TEXT], toy(0)[TEXT].float() * 0.7 + toy(1)[TEXT].float() * 0.3)


def test_fp8_models_are_merged_with_their_scales(toys: Toys) -> None:
    tensors = toy(1)
    stem = UNET.removesuffix("weight")
    scale = torch.rand(8) + 0.5
    tensors |= {UNET: tensors[UNET].to(torch.float8_e4m3fn), f"{stem}scale_weight": scale}
    toys.add("small.safetensors", tensors)
    result = merged(toys, changed(WEIGHTED, secondary="small"))
    b = tensors[UNET].float() * scale[:, None]
    assert torch.equal(result[UNET], toy(0)[UNET].float() * 0.7 + b * 0.3)
    assert not any(name.endswith("scale_weight") for name in result)


def test_what_another_model_lacks_stays_and_is_said(toys: Toys) -> None:
    tensors = toy(1)
    del tensors[VAE]
    toys.add("pruned.safetensors", {**tensors, "model_ema.x.weight": torch.ones(2)})
    done = toys.merge(changed(WEIGHTED, secondary="pruned"))
    result = load_file(done.path)
    assert torch.equal(result[VAE], toy(0)[VAE].float())
    assert "model_ema.x.weight" not in result
    assert len(done.notices) == 1
    assert f"1 tensors are those of a.safetensors, because another model lacks them: {VAE}" in (done.notices[0])


@pytest.mark.parametrize("channels", [9, 8])
def test_a_model_with_more_channels_is_merged_in_its_first_four(toys: Toys, channels: int) -> None:
    toys.add("wide.safetensors", toy(5, channels))
    result = merged(toys, changed(WEIGHTED, primary="wide"))
    a, b = toy(5, channels)[CONV_IN].float(), toy(1)[CONV_IN].float()
    assert torch.equal(result[CONV_IN][:, :4], a[:, :4] * 0.7 + b * 0.3)
    assert torch.equal(result[CONV_IN][:, 4:], a[:, 4:])
    result = merged(toys, changed(DIFFERENCE, primary="wide", name="by difference"))
    change = (toy(1)[CONV_IN].float() - toy(2)[CONV_IN].float()) * 0.5
    assert torch.equal(result[CONV_IN][:, :4], a[:, :4] + change)
    assert torch.equal(result[CONV_IN][:, 4:], a[:, 4:])


@pytest.mark.parametrize(("channels", "words"), [(9, "an inpainting model"), (8, "an instruct-pix2pix model")])
def test_a_model_with_more_channels_must_be_a(toys: Toys, channels: int, words: str) -> None:
    toys.add("wide.safetensors", toy(5, channels))
    with pytest.raises(CheckpointError, match=f"wide.safetensors is {words} .*it must be model A"):
        toys.merge(changed(WEIGHTED, secondary="wide"))


def test_other_shapes_are_refused_by_name(toys: Toys) -> None:
    toys.add("other.safetensors", {**toy(1), UNET: torch.zeros(8, 12)})
    with pytest.raises(CheckpointError, match=rf"{UNET} is \[8, 8\] in a\.safetensors, \[8, 12\] in other\.safe"):
        toys.merge(changed(WEIGHTED, secondary="other"))
    assert "merged.safetensors" not in toys.names()


def test_another_unet_is_refused_by_name(toys: Toys) -> None:
    extra = "model.diffusion_model.label_emb.0.0.weight"
    toys.add("other.safetensors", {**toy(1), extra: torch.zeros(2)})
    with pytest.raises(CheckpointError, match=rf"architecture: {extra} of other\.safetensors is not in a\.safe"):
        toys.merge(changed(WEIGHTED, secondary="other"))
    with pytest.raises(CheckpointError, match=rf"{extra} of other\.safetensors is not in b\.safe"):
        toys.merge(changed(WEIGHTED, primary="other"))


def test_files_without_a_unet_or_common_weights_are_refused(toys: Toys) -> None:
    toys.add("text.safetensors", {TEXT: toy(1)[TEXT]})
    toys.add("lora.safetensors", {"lora_unet_x.lora_up.weight": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"text\.safetensors has no UNet, but a\.safetensors has one"):
        toys.merge(changed(WEIGHTED, secondary="text"))
    with pytest.raises(CheckpointError, match="no weights in common"):
        toys.merge(changed(WEIGHTED, primary="text", secondary="lora"))


def test_a_vae_is_baked_in(toys: Toys) -> None:
    (toys.folder / "VAE").mkdir()
    name = VAE.removeprefix("first_stage_model.")
    vae = torch.randn(4, 4, 3, 3)
    toys.add("VAE/good.safetensors", {name: vae, "loss.x": torch.ones(1)})
    result = merged(toys, changed(WEIGHTED, vae="good.safetensors"))
    assert torch.equal(result[VAE], vae)
    assert "first_stage_model.loss.x" not in result
    assert not torch.equal(result[UNET], toy(0)[UNET].float())
    toys.add("VAE/bad.safetensors", {name: torch.ones(4, 16, 3, 3)})
    with pytest.raises(CheckpointError, match=rf"bad\.safetensors does not fit .*{VAE} is \[4, 16, 3, 3\], not \[4, 4"):
        toys.merge(changed(WEIGHTED, vae="bad.safetensors", name="x"))


def test_weights_are_discarded_by_a_regular_expression(toys: Toys) -> None:
    result = merged(toys, changed(WEIGHTED, discard=r"^first_stage_model\.|position_ids$"))
    assert set(result) == {CONV_IN, UNET, TEXT, SCHEDULE}
    with pytest.raises(InvalidValueError, match="found in every name"):
        toys.merge(changed(WEIGHTED, discard=".", name="x"))


def test_the_yaml_is_copied_from_where_it_is_optionsed(toys: Toys) -> None:
    (toys.folder / "b.yaml").write_text("model: b")
    toys.merge(WEIGHTED)
    assert (toys.folder / "merged.yaml").read_text() == "model: b"
    (toys.folder / "a.yaml").write_text("model: a")
    for source, name, expected in (("A, B or C", "x", "a"), ("B", "y", "b"), ("C", "z", None), ("Don't", "w", None)):
        toys.merge(changed(DIFFERENCE, config_source=source, name=name))
        yaml = toys.folder / f"{name}.yaml"
        assert (yaml.read_text() if yaml.exists() else None) == (expected and f"model: {expected}")


def test_a_yaml_of_another_model_is_not_replaced(toys: Toys) -> None:
    (toys.folder / "a.yaml").write_text("model: a")
    (toys.folder / "merged.yaml").write_text("model: other")
    with pytest.raises(InvalidValueError, match=r"merged\.yaml exists already"):
        toys.merge(WEIGHTED)


def test_no_more_than_one_tensor_a_model_is_in_memory(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0
    read = TensorFile.read_entry

    def counted(file: TensorFile, entry: TensorEntry, name: str, into: Tensor | None = None) -> Tensor:
        nonlocal most
        tensor = read(file, entry, name, into)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(reference() is not None for reference in alive))
        return tensor

    monkeypatch.setattr(TensorFile, "read_entry", counted)
    toys.merge(DIFFERENCE)
    assert len(alive) == 3 * len(WEIGHTS) + 2
    assert most <= 3


@pytest.mark.parametrize("numbers", [1, 30, 100])
def test_large_tensors_are_merged_in_pieces(toys: Toys, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"x.scalar": torch.tensor(2.0), "x.empty": torch.zeros(0, 3), "x.row": torch.arange(5.0)}
    toys.add("wide.safetensors", toy(5, channels=9) | odd)
    toys.add("b.safetensors", toy(1) | odd)
    options = changed(DIFFERENCE, primary="wide", secondary="b")
    whole = merged(toys, options)
    monkeypatch.setattr(lib_workbench.merging.merged, "PIECE_NUMBERS", numbers)
    pieces = merged(toys, changed(options, name="in pieces"))
    assert all(torch.equal(tensor, pieces[name]) for name, tensor in whole.items())
    weighted = merged(toys, changed(WEIGHTED, primary="wide", name="weighted"))
    assert torch.equal(weighted["x.row"], odd["x.row"] * 0.7 + odd["x.row"] * 0.3)
    assert weighted["x.scalar"] == 2
    assert weighted["x.empty"].shape == (0, 3)


def test_open_clips_fused_tensors_keep_their_names(toys: Toys) -> None:
    stem = "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj"
    projection = "conditioner.embedders.1.model.text_projection"
    more = [{f"{stem}_weight": torch.randn(12, 4), projection: torch.randn(4, 6)} for _ in "ab"]
    scale = torch.rand(12) + 0.5
    eight = {f"{stem}_weight": more[1][f"{stem}_weight"].to(torch.float8_e4m3fn), f"{stem}.scale_weight": scale}
    toys.add("x.safetensors", toy(0) | more[0])
    toys.add("y.safetensors", toy(1) | more[1] | eight)
    result = merged(toys, changed(WEIGHTED, primary="x", secondary="y"))
    b = eight[f"{stem}_weight"].float() * scale[:, None]
    assert set(result) == {*toy(0), *more[0]}
    assert torch.equal(result[f"{stem}_weight"], more[0][f"{stem}_weight"] * 0.7 + b * 0.3)
    assert torch.equal(result[projection], more[0][projection] * 0.7 + more[1][projection] * 0.3)
    bare = merged(toys, changed(WEIGHTED, primary="x", secondary="y", name="bare", discard=r"in_proj_weight$"))
    assert set(bare) == {*toy(0), projection}


def test_progress_counts_up_to_the_end_and_names_what_happens(toys: Toys) -> None:
    seen: list[tuple[float, float, str]] = []
    toys.merge(WEIGHTED, lambda done, total, phase: seen.append((done, total, phase)))
    fractions = [done / total for done, total, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    phases = [phase for _, _, phase in seen]
    assert "hashing a.safetensors" in phases
    assert "3 of 6 tensors" in phases


@pytest.mark.parametrize("at", ["hashing", "3 of", "finishing"])
def test_cancelling_leaves_nothing(toys: Toys, at: str) -> None:
    (toys.folder / "a.yaml").write_text("model: a")
    before = toys.names()

    def stop(done: float, total: float, phase: str) -> None:
        if phase.startswith(at):
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        toys.merge(WEIGHTED, stop)
    assert toys.names() == before


def test_a_failure_at_the_very_end_takes_the_yaml_away_again(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    (toys.folder / "a.yaml").write_text("model: a")
    before = toys.names()

    def full(writer: TensorWriter) -> None:
        assert (toys.folder / "merged.yaml").exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorWriter, "_finish", full)
    with pytest.raises(OutputError, match="could not be saved"):
        toys.merge(WEIGHTED)
    assert toys.names() == before


def test_a_disk_without_room_is_noticed_before(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(OutputError, match=r"merged\.safetensors needs .* GB, but in .* only"):
        toys.merge(WEIGHTED)
    assert "merged.safetensors" not in toys.names()


def test_numbers_beyond_sixteen_bits_are_said(toys: Toys) -> None:
    toys.add("large.safetensors", {**toy(1, dtype=torch.float32), UNET: torch.full((8, 8), 1e6)})
    done = toys.merge(changed(WEIGHTED, secondary="large", storage="fp16"))
    assert f"1 tensors have values that are not finite as fp16 ({UNET})" in done.notices[0]
    assert toys.merge(changed(WEIGHTED, secondary="large", storage="bf16", name="x")).notices == []


def test_a_file_that_appeared_meanwhile_is_kept(toys: Toys) -> None:
    def appear(done: float, total: float, phase: str) -> None:
        (toys.folder / "merged.safetensors").write_bytes(b"another's")

    with pytest.raises(InvalidValueError, match="exists already"):
        toys.merge(WEIGHTED, appear)
    assert (toys.folder / "merged.safetensors").read_bytes() == b"another's"
