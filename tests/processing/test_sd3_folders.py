"""What only folders of diffusers bring to SD3: T5 with its own tokenizer, and a projection of CLIP-L."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.prompting.conditioning import Conditioning
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings
from tests.models.diffusers_sd3_folders import sd3_text_encoder, write_sd3_folder
from tests.models.family_files import write_family
from tests.models.tiny_t5 import t5_tensors, write_tokenizer
from tests.recordings import CONFIGS, cpu_machine

PROMPT = "a red cat on a wall"


def engine_of(folder: Path) -> Engine:
    return Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)


def encoded(engine: Engine, **changes: Any) -> Conditioning:
    settings = Settings().with_changes(changes)
    conditioner = engine.conditioner(None, PrecisionOptions.of(settings))
    ((cond, _),) = conditioner.encode([PROMPT], [""], 4, settings, (64, 64)).prompts[0].at(0)
    return cond


def test_t5_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folders").mkdir()
    (tmp_path / "files").mkdir()
    (tmp_path / "text_encoder").mkdir()
    write_sd3_folder(tmp_path / "folders", "sd3", shards="300KB", with_t5=True)
    write_family(tmp_path / "files", "sd3")
    from_folder = encoded(engine_of(tmp_path / "folders"), sd3_enable_t5=True)
    save_file(t5_tensors(), tmp_path / "text_encoder" / "t5xxl.safetensors")
    write_tokenizer(tmp_path / "text_encoder" / "t5_tokenizer.json")
    from_files = encoded(engine_of(tmp_path / "files"), sd3_enable_t5=True)
    assert from_folder.crossattn[77:].any()
    assert torch.equal(from_folder.crossattn, from_files.crossattn)


def test_a_projection_of_clip_l_is_applied_as_diffusers_does(tmp_path: Path) -> None:
    projection = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).half()
    write_sd3_folder(tmp_path, "sd3", projection=projection)
    found = encoded(engine_of(tmp_path)).vector
    assert found is not None
    torch.testing.assert_close(found[:64], pooled("text_encoder", projection), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[64:], pooled("text_encoder_2"), atol=1e-4, rtol=1e-4)


def pooled(part: str, projection: Tensor | None = None) -> Tensor:
    """What the pipeline of diffusers takes of an encoder."""
    tokenizer = ClipTokenizer.standard()
    ids = [tokenizer.start_id, *tokenizer.encode(PROMPT), tokenizer.end_id]
    pad = tokenizer.end_id if part == "text_encoder" else 0
    model: Any = sd3_text_encoder("sd3", part, projection).float().eval()
    model.config.eos_token_id = tokenizer.end_id
    model.text_model.eos_token_id = tokenizer.end_id
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([ids + [pad] * (77 - len(ids))])).text_embeds[0]
    return found
