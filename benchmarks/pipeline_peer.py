"""diffusers' pipelines for checkpoints of full size, loaded by `from_single_file` without a hub."""

import json
from pathlib import Path
from typing import Any

from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from transformers import CLIPTokenizer

from benchmarks.full_size import FAMILIES
from modules.models.families.architecture import read_architecture

PIPELINES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "sd1": (StableDiffusionPipeline, ("text_encoder", "unet", "vae")),
    "sdxl": (StableDiffusionXLPipeline, ("text_encoder", "text_encoder_2", "unet", "vae")),
}
"""By family: the class, and its models in the order of `FAMILIES`."""
VECTOR_INPUT: dict[str, dict[str, object]] = {
    "sdxl": {"class_embed_type": None, "addition_embed_type": "text_time", "addition_time_embed_dim": 256}
}
"""Settings of UNets to which our program gives the vector of text and sizes as it is, and diffusers its parts."""
TINY_VOCABULARY = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}


def write_pipeline_folder(folder: Path, family: str) -> None:
    """The settings that diffusers would ask its hub for: of every component, a scheduler, and tokenizers of 3
    words, with which every prompt has the usual length."""
    pipeline, names = PIPELINES[family]
    make, yaml = FAMILIES[family]
    index: dict[str, object] = {"_class_name": pipeline.__name__}
    for name, (module, _) in zip(names, make(read_architecture(yaml)), strict=True):
        from_transformers = name.startswith("text_encoder")
        index[name] = ["transformers" if from_transformers else "diffusers", type(module).__name__]
        adapter: Any = module
        if from_transformers:
            adapter.config.save_pretrained(folder / name)
            tokenizer = name.replace("text_encoder", "tokenizer")
            CLIPTokenizer(vocab=TINY_VOCABULARY, merges=[], model_max_length=77).save_pretrained(folder / tokenizer)
            index[tokenizer] = ["transformers", "CLIPTokenizer"]
        else:
            if name == "unet" and family in VECTOR_INPUT:
                adapter.register_to_config(**VECTOR_INPUT[family])
            adapter.save_config(folder / name)
    EulerDiscreteScheduler(steps_offset=1).save_config(folder / "scheduler")
    index["scheduler"] = ["diffusers", "EulerDiscreteScheduler"]
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
