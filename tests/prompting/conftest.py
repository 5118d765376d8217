"""Parts the prompting tests share: the tokenizer, the tiny text model of the recordings, and its embeddings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from modules.models.text_encoders.clip_encoder import ClipTextEncoder
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.encode import TextTower
from modules.prompting.tokens import ClipTokenizer
from tests.prompting.recordings import MODELS, REFERENCE

_TEXT_MODEL = "cond_stage_model.transformer.text_model."


@pytest.fixture(scope="session")
def tokenizer() -> ClipTokenizer:
    return ClipTokenizer.standard()


@pytest.fixture(scope="session")
def embeddings(tokenizer: ClipTokenizer) -> EmbeddingTable:
    tiny = load_file(MODELS / "embeddings" / "tiny-emb.safetensors")["emb_params"]
    pt = torch.load(MODELS / "embeddings" / "tinypt.pt", weights_only=True)["string_to_param"]["*"]
    return EmbeddingTable(tokenizer, {"tiny-emb": tiny.float(), "tinypt": pt.detach().float()})


@pytest.fixture(scope="session")
def text_model() -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(**json.loads((MODELS / "tiny-clip-text" / "config.json").read_text()))
    model: nn.Module = CLIPTextModel(config).eval()
    weights: dict[str, Any] = load_file(MODELS / "tiny-sd1.safetensors")
    state = {
        key.removeprefix(_TEXT_MODEL): value.float()
        for key, value in weights.items()
        if key.startswith(_TEXT_MODEL) and not key.endswith("position_ids")
    }
    model.load_state_dict(state)
    return model


@pytest.fixture(scope="session")
def tower(tokenizer: ClipTokenizer, embeddings: EmbeddingTable, text_model: nn.Module) -> TextTower:
    return TextTower(tokenizer, ClipTextEncoder(text_model), embeddings)


@pytest.fixture(scope="session")
def recorded_arrays() -> dict[str, NDArray[np.float32]]:
    with np.load(Path(REFERENCE) / "parts.npz") as archive:
        return {name: archive[name] for name in archive.files if name.startswith("cond/")}
