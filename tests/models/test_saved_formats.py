"""Checkpoints saved in blocks: our own layout, GGUF as ggml's package reads it, ComfyUI's; and within a budget."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from lib_workbench.merging.conversion import report_precision, save_as
from modules.errors import CheckpointError, InvalidValueError
from modules.memory.layer import stored_state
from modules.models.files.coded_file import CodedFile
from modules.models.files.gguf_file import GgufFile
from modules.models.files.tensor_source import open_tensors
from modules.models.loading.budget import CANDIDATES, Choice, choices_of, solve
from modules.models.loading.load_model import load_model
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.precision import storage_rules
from tests.models.family_files import write_family
from tests.models.test_conversion import info_of, load, stored_state_of
from tests.models.test_gguf_files import load as load_plain
from tests.models.test_gguf_files import output
from tests.recordings import CONFIGS
from tests.thorough import thoroughly

FAMILIES = ("sd1", "sdxl", "sd3")


# Both formats take the same way through the file: each family with one of them, and the bits of one of each kind.
SAVED = (("code4", "sd1"), ("gguf_q5_0", "sdxl"), ("gguf_q5_0", "sd3"))


@pytest.mark.parametrize(
    ("storage", "family"),
    [
        case if case in SAVED else thoroughly(*case)
        for family in FAMILIES
        for case in (("code4", family), ("gguf_q5_0", family))
    ],
)
def test_what_is_saved_is_what_would_be_loaded(family: str, storage: str, tmp_path: Path) -> None:
    source, target = write_family(tmp_path, family), tmp_path / "small.safetensors"
    report = save_as(info_of(source), CONFIGS, storage_rules(storage), target)
    assert target.stat().st_size < source.stat().st_size
    saved, direct = load_plain(target), load(source, storage)
    if family == "sd1":  # others have fused or transposed tensors, which a file can hold in one format only
        assert all(
            torch.equal(value.view(torch.uint8), direct_value.view(torch.uint8))
            for value, direct_value in zip(
                stored_state_of(saved).values(), stored_state_of(direct).values(), strict=True
            )
            if value.dtype == torch.uint8
        )
    # In the third family two tensors have their rows in another order in files, and stay in 16 bits there.
    assert float((output(saved) - output(direct)).abs().max()) < (0.3 if family == "sd3" else 2e-2)
    count = sum(tensor.storage is not None for tensor in report.tensors)
    assert f"{count} in {storage}; no further error" in saved.stored_note
    again = tmp_path / "again.safetensors"
    save_as(info_of(target), CONFIGS, storage_rules(storage), again)
    first, second = load_file(target), load_file(again)
    assert second.keys() == first.keys() and all(torch.equal(value, first[key]) for key, value in second.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_is_read_by_ggmls_package_and_by_us(family: str, tmp_path: Path) -> None:
    source, target = write_family(tmp_path, family), tmp_path / "small.gguf"
    save_as(info_of(source), CONFIGS, storage_rules("gguf_q8_0"), target)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    originals = load_file(source)
    with GgufFile(target) as ours:
        assert theirs.keys() == ours.entries.keys()
        assert json.loads(json.loads(ours.metadata["featherweight.receipt"])["featherweight"])["source"] == source.name
        kinds = set()
        for name, tensor in theirs.items():
            decoded = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
            assert torch.allclose(ours.read(name).float().reshape(-1), decoded.float().reshape(-1), atol=1e-6), name
            assert tuple(reversed(tensor.shape.tolist())) == ours.entries[name].shape
            assert torch.allclose(decoded.float().reshape(-1), originals[name].float().reshape(-1), atol=0.05), name
            kinds.add(tensor.tensor_type.name)
        assert kinds == {"Q8_0", "F16", "F32"}
    assert float((output(load_plain(target)) - output(load_plain(source))).abs().max()) < 0.1


def test_comfyuis_layout_has_its_words_and_shapes(tmp_path: Path) -> None:
    source, target = write_family(tmp_path, "sd3"), tmp_path / "comfy.safetensors"
    save_as(info_of(source), CONFIGS, storage_rules("int8_row"), target, layout="comfyui")
    tensors, originals = load_file(target), load_file(source)
    stems = [key.removesuffix(".comfy_quant") for key in tensors if key.endswith(".comfy_quant")]
    assert stems and all(stem.startswith("model.diffusion_model.") for stem in stems)
    for stem in stems:
        declared = json.loads(bytes(tensors[f"{stem}.comfy_quant"].tolist()))
        assert declared == {"format": "int8_tensorwise", "per_row": True}
        weight, scale = tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale"]
        assert (weight.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float32, (len(weight), 1))
        assert torch.allclose(weight.float() * scale, originals[f"{stem}.weight"].float(), atol=2e-3)
    others = {key for key in tensors if not key.startswith(tuple(stems))}
    assert all(tensors[key].dtype in (torch.float16, torch.int64) for key in others)
    loaded = load_plain(target)
    kinds = {s.formats["weight"].name for layer in loaded.unet.modules() if (s := stored_state(layer)) is not None}
    assert kinds == {"int8_row"}


@pytest.mark.parametrize("layout", ["own", "comfyui"])
def test_rotated_int8_says_of_each_layer_whether_it_is_rotated(layout: str, tmp_path: Path) -> None:
    source = write_family(tmp_path, "sdxl")
    tensors = load_file(source)
    spiky = "model.diffusion_model.middle_block.1.transformer_blocks.0.ff.net.2"
    tensors[f"{spiky}.weight"][:, ::64] *= 40  # outliers, which a rotation shares out
    save_file(tensors, source)
    target = tmp_path / "rotated.safetensors"
    report = save_as(info_of(source), CONFIGS, storage_rules("int8_convrot"), target, layout=layout)
    kinds = {tensor.name: tensor.storage for tensor in report.tensors if tensor.storage}
    assert kinds[f"{spiky}.weight"] == "int8_convrot" and "int8_row" in kinds.values()
    saved, direct = load_plain(target), load(source, "int8_convrot")
    formats = {
        name: state.formats["weight"].name
        for name, layer in saved.unet.named_modules()
        if (state := stored_state(layer)) is not None
    }
    assert "int8_convrot" in formats.values() and "int8_row" in formats.values()
    weights = [model.unet.state_dict() for model in (saved, direct)]
    rotated = next(name for name, kind in formats.items() if kind == "int8_convrot")
    assert torch.equal(weights[0][f"{rotated}.weight"], weights[1][f"{rotated}.weight"])  # rounded once
    # ComfyUI's layout has no int8 convolutions and text encoders.
    assert float((output(saved) - output(direct)).abs().max()) < (0.1 if layout == "comfyui" else 2e-2)
    written = load_file(target)
    if layout == "comfyui":
        declared = {
            key.removesuffix(".comfy_quant"): json.loads(bytes(value.tolist()))
            for key, value in written.items()
            if key.endswith(".comfy_quant")
        }
        assert declared.pop(spiky) == {
            "format": "int8_tensorwise",
            "convrot": True,
            "convrot_groupsize": 256,
            "per_row": True,
        }
        assert all(facts.get("format") == "int8_tensorwise" for facts in declared.values())
        assert written[f"{spiky}.weight_scale"].shape == (len(written[f"{spiky}.weight"]), 1)
    again = tmp_path / "again.safetensors"
    save_as(info_of(target), CONFIGS, storage_rules("int8_convrot"), again, layout=layout)
    assert load_file(again).keys() == written.keys()
    assert all(torch.equal(value, written[key]) for key, value in load_file(again).items())


def test_scales_of_rotated_int8_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    source, target = write_family(tmp_path, "sd1"), tmp_path / "rotated.safetensors"
    tensors = load_file(source)
    spiky = "model.diffusion_model.middle_block.1.transformer_blocks.0.ff.net.2"
    tensors[f"{spiky}.weight"][:, ::64] *= 40
    save_file(tensors, source)
    save_as(info_of(source), CONFIGS, storage_rules("int8_convrot"), target, layout="comfyui")
    tensors = load_file(target)
    tensors[f"{spiky}.weight_scale"][3] = torch.inf
    save_file(tensors, target)
    with pytest.raises(CheckpointError, match=r"the scales of .*ff\.net\.2\.weight hold NaN or infinite values"):
        load_plain(target)


def test_a_budget_is_kept_with_the_least_error_and_explained(tmp_path: Path) -> None:
    source = write_family(tmp_path, "sd1")
    info, rules = info_of(source), storage_rules("code4")
    sizes, errors = [], []
    least = report_precision(info, CONFIGS, rules).bytes_of()[1]
    most = report_precision(info, CONFIGS, storage_rules("fp16")).bytes_of()[1]
    for budget in (most, (least + most) // 2, int(least * 1.01)):
        report = report_precision(info, CONFIGS, rules, budget_bytes=budget)
        sizes.append(report.bytes_of()[1])
        assert sizes[-1] <= budget
        errors.append(sum(tensor.error**2 for tensor in report.tensors))
        assert report.notices[0].startswith("Fits ") and "sum of the squared relative errors" in report.notices[0]
    assert errors[0] == 0 and errors[0] < errors[1] < errors[2]
    with pytest.raises(
        InvalidValueError,
        match=r"do not fit 1e-06 GB: in 4 bits.*they take 0\.\d*[1-9] GB.*Allow that, or stream weights",
    ):
        report_precision(info, CONFIGS, rules, budget_bytes=1000)
    target = tmp_path / "mixed.safetensors"
    save_as(info, CONFIGS, rules, target, budget_bytes=(least + most) // 2)
    assert float((output(load_plain(target)) - output(load_plain(source))).abs().max()) < 0.1


def test_a_model_loads_within_a_budget(tmp_path: Path) -> None:
    source = write_family(tmp_path, "sdxl")
    info = info_of(source)
    sizes = [report_precision(info, CONFIGS, storage_rules(name)).bytes_of()[1] for name in ("code4", "fp16")]
    plan = PrecisionPlan(
        device=torch.device("cpu"),
        compute_dtype=torch.float16,
        vae_dtype=torch.float16,
        unet_storage="code4",
        text_storage="code4",
        budget_bytes=sum(sizes) // 2,
    )
    model = load_model(info, CONFIGS, lambda _: plan)
    assert model.stored_bytes <= (plan.budget_bytes or 0)
    kinds = {s.formats["weight"].name for layer in model.unet.modules() if (s := stored_state(layer)) is not None}
    assert len(kinds & set(CANDIDATES)) >= 1 and "Fits" in model.stored_note
    assert model.plan.label.startswith("mixed, at most 0.0")


def test_the_knapsack_finds_the_least_error() -> None:
    def layer(*pairs: tuple[int, float]) -> list[Choice]:
        return [Choice(str(size), size, error) for size, error in pairs]

    layers = [layer((100, 0), (50, 0.3), (25, 0.5)), layer((100, 0), (50, 0.1), (25, 0.9)), layer((10, 0), (5, 0.2))]
    assert [choice.size_bytes for choice in solve(layers, 210)] == [100, 100, 10]
    assert [choice.size_bytes for choice in solve(layers, 160)] == [100, 50, 10]
    assert [choice.size_bytes for choice in solve(layers, 90)] == [25, 50, 10]
    assert [choice.size_bytes for choice in solve(layers, 55)] == [25, 25, 5]
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    choices = choices_of(weight)
    assert [choice.storage for choice in choices] == [None, *CANDIDATES]
    assert [choice.error for choice in choices] == sorted(choice.error for choice in choices)


def test_wrong_targets_and_formats_are_refused(tmp_path: Path) -> None:
    source = info_of(write_family(tmp_path, "sd1"))
    with pytest.raises(InvalidValueError, match=r"layout gguf do not hold code4\. They hold fp16"):
        save_as(source, CONFIGS, storage_rules("code4"), tmp_path / "a.gguf")
    with pytest.raises(InvalidValueError, match=r"layout comfyui do not hold gguf_q8_0"):
        save_as(source, CONFIGS, storage_rules("gguf_q8_0"), tmp_path / "a.safetensors", layout="comfyui")
    with pytest.raises(InvalidValueError, match=r"a\.safetensors: the name must end in \.gguf"):
        save_as(source, CONFIGS, storage_rules("gguf_q8_0"), tmp_path / "a.safetensors", layout="gguf")
    with pytest.raises(InvalidValueError, match=r"Unknown file layout 'zip'"):
        save_as(source, CONFIGS, storage_rules("fp16"), tmp_path / "a.safetensors", layout="zip")


def test_damaged_descriptions_of_packed_weights_are_refused(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.zeros(4, 22, dtype=torch.uint8)}
    path = tmp_path / "a.safetensors"
    for described in ([], ["code4"], ["none", [4, 32]], ["code4", [4, 33]], ["code4", [4, 64]], ["code4", "x"], 7):
        save_file(tensors, path, {"featherweight_packed": json.dumps({"a.weight": described})})
        with pytest.raises(Exception, match=r"a\.safetensors: (says that a\.weight is packed|a\.weight is said)"):
            open_tensors(path)
    save_file(tensors, path, {"featherweight_packed": json.dumps({"a.weight": ["code4", [4, 32]]})})
    with open_tensors(path) as file:
        assert isinstance(file, CodedFile) and torch.equal(file.read("a.weight"), torch.zeros(4, 32))
