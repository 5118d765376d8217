"""Images of a model in the diffusers layout are those of the same weights in the original one, to the bit."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lib_workbench.merging.conversion import report_precision, save_as
from lib_workbench.merging.merge import merge
from lib_workbench.merging.request import MergeMethod, MergeRequest
from modules.models.families.ldm.noise import PREDICTION_KEY
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.meta_model import build_meta_model
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import storage_rules
from modules.processing.engine.streaming_options import StreamFlags
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.diffusers_folders import write_folder
from tests.models.diffusers_sd3_folders import write_sd3_folder
from tests.models.family_files import TINY_SD3, family_tensors
from tests.recordings import CONFIGS, cpu_machine

FAMILIES = ("sd1", "sd2", "sdxl", "sd3", "sd3.5")
LORA_KEY = {
    "sd1": ("lora_te_text_model_encoder_layers_0_self_attn_q_proj", 64),
    "sd2": ("lora_te_text_model_encoder_layers_0_self_attn_q_proj", 128),
    "sdxl": ("lora_te2_text_model_encoder_layers_0_self_attn_q_proj", 128),
    "sd3": ("lora_unet_transformer_blocks_0_attn_to_q", 128),
    "sd3.5": ("lora_unet_transformer_blocks_1_attn2_to_k", 128),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    home = tmp_path_factory.mktemp("layouts")
    models, loras = home / "models", home / "loras"
    models.mkdir()
    loras.mkdir()
    for name in FAMILIES:
        save_file(family_tensors(name), models / f"{name}.safetensors", {PREDICTION_KEY: "epsilon"})
        (write_sd3_folder if name in TINY_SD3 else write_folder)(models, name, f"{name} v1.0", shards="300KB")
        torch.manual_seed(len(name) + ord(name[-1]))
        key, width = LORA_KEY[name]
        factors = {"lora_down": torch.randn(4, width) / width**0.5, "lora_up": torch.randn(width, 4)}
        save_file({f"{key}.{part}.weight": tensor for part, tensor in factors.items()}, loras / f"{name}.safetensors")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    catalogue = CheckpointCatalogue([models], HashCache(home / "hashes.json"))
    machine = replace(cpu_machine(), streaming=StreamFlags(folder=home / "offload"))
    engine = Engine(catalogue, CONFIGS, lambda: machine, models=ExtraModels(adapters=adapters_of(loras)))
    yield engine
    engine.close()
    torch.set_num_threads(threads)


def pixels(engine: Engine, checkpoint: str, prompt: str, **settings: object) -> bytes:
    request = GenerationRequest(
        prompt=prompt,
        checkpoint=checkpoint,
        width=64,
        height=64,
        steps=1,
        seed=1,
        subseed=0,
        sampler="Euler",
        save_images=False,
        settings=Settings().changed(**settings),
    )
    return bytes(generate(request, engine, Output(Path()), Silent()).samples[0].image.tobytes())


def test_the_folders_are_listed_and_their_parts_are_not(engine: Engine) -> None:
    names = {info.name for info in engine.catalogue.entries}
    assert names == {f"{name}{ending}" for name in FAMILIES for ending in (".safetensors", " v1.0")}


ROW = {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row"}
PLAIN_FP8 = {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}
STREAMED = {"stream_weights": "Layers"}
MERGED = {"lora_mode": "merge from full precision", "fp8_storage": "Enable", "fp8_format": "int8_row"}
EXACT = {"lora_mode": "exact", **ROW}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sd1", {}),
        ("sd1", STREAMED),
        ("sd1", MERGED),
        ("sd2", {}),
        ("sd2", PLAIN_FP8),
        ("sd2", ROW),
        ("sd2", STREAMED),
        ("sdxl", {}),
        ("sdxl", ROW),
        ("sdxl", STREAMED),
        ("sdxl", MERGED),
        ("sd3", {}),
        ("sd3", ROW),
        ("sd3", MERGED),
        ("sd3.5", PLAIN_FP8),
        ("sd3.5", STREAMED),
        ("sd3.5", EXACT),
    ],
    ids=str,
)
def test_the_same_image(engine: Engine, name: str, settings: dict[str, object]) -> None:
    prompt = f"a cat<lora:{name}:1>" if "lora_mode" in settings else "a cat"
    from_folder = pixels(engine, f"{name} v1.0", prompt, **settings)
    assert engine.status.model is not None and f"{name} v1.0" in engine.status.model.title
    assert from_folder == pixels(engine, f"{name}.safetensors", prompt, **settings)
    assert len(set(from_folder)) > 8
    assert prompt == "a cat" or from_folder != pixels(engine, f"{name} v1.0", "a cat", **settings)


def test_streamed_weights_are_read_from_the_folder_itself(engine: Engine) -> None:
    pixels(engine, "sd1 v1.0", "a cat", stream_weights="Layers")
    facts = engine.status.model
    assert facts is not None and facts.streamed_bytes > facts.stored_bytes


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_saved_as_one_file_makes_the_same_image(engine: Engine, name: str) -> None:
    info = engine.catalogue.get(f"{name} v1.0")
    target = info.path.with_name(f"one-{name}.safetensors")
    save_as(info, CONFIGS, storage_rules("fp16", ()), target)
    engine.catalogue.refresh()
    assert pixels(engine, target.name, "a cat") == pixels(engine, info.name, "a cat")
    target.unlink()
    engine.catalogue.refresh()


def test_a_folder_is_merged_like_a_file(engine: Engine) -> None:
    folder, file = engine.catalogue.get("sd1 v1.0"), engine.catalogue.get("sd1.safetensors")
    request = MergeRequest(
        models=(file, folder),
        method=MergeMethod.WEIGHTED_SUM,
        multiplier=0.5,
        storage="fp32",
        target=file.path.with_name("half.safetensors"),
    )
    result = merge(request, CONFIGS, storage_rules("fp32", ()), engine.catalogue.with_hash)
    engine.catalogue.refresh()
    assert not result.notices
    assert pixels(engine, "half.safetensors", "a cat") == pixels(engine, "sd1.safetensors", "a cat")
    request.target.unlink()
    engine.catalogue.refresh()


def test_the_report_of_a_folder_counts_its_tensors(engine: Engine) -> None:
    reports = [
        report_precision(engine.catalogue.get(name), CONFIGS, storage_rules("fp8_e4m3fn_row", ()))
        for name in ("sdxl v1.0", "sdxl.safetensors")
    ]
    assert reports[0].bytes_of() == reports[1].bytes_of()
    assert reports[0].mean_error == pytest.approx(reports[1].mean_error)


def test_the_hash_of_a_folder_is_that_of_the_list_of_its_files(engine: Engine) -> None:
    info = engine.catalogue.with_hash(engine.catalogue.get("sd2 v1.0"))
    kinds = ("*.safetensors", "config.json", "scheduler_config.json")
    files = sorted(path for kind in kinds for path in info.path.rglob(kind))
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(info.path).as_posix()}" for path in files
    ]
    assert info.sha256 == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    assert info.title == f"sd2 v1.0 [{str(info.sha256)[:10]}]" and info.model_name == "sd2 v1.0"
    assert engine.catalogue.get(info.sha256[:10] if info.sha256 else "") == info


def test_changed_weights_are_noticed(engine: Engine) -> None:
    info = engine.catalogue.get("sd1 v1.0")
    assert not info.has_changed
    file = next((info.path / "unet").glob("*.safetensors"))
    file.write_bytes(file.read_bytes() + b" ")
    assert info.has_changed


def test_a_plan_can_be_made_for_a_folder(engine: Engine) -> None:
    meta_models = [build_meta_model(engine.catalogue.get(name), CONFIGS) for name in ("sdxl v1.0", "sdxl.safetensors")]
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    assert meta_models[0].weights(plan) == meta_models[1].weights(plan)
