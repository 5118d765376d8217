"""The files next to a LoRA: an image made with it, and a model card that says how it is used."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.engine import Engine, EngineOptions, ExtraModels
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.scripts.built_in import load_built_in
from modules.settings.values import Settings
from modules.system.atomic_files import write_atomic


@dataclass(frozen=True, kw_only=True)
class PreviewSample:
    """One image to make: `prompt` holds the `<lora:...>` tags."""

    prompt: str
    seed: int
    side_px: int
    steps: int = 20
    cfg_scale: float = 6.0
    settings: Settings = field(default_factory=Settings)


class PreviewRenderer:
    """Draws through the program's own engine, without saving; `folder` is where adapters are looked for."""

    def __init__(self, checkpoint: Path, folder: Path, configs_dir: Path, device: torch.device) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        scratch = Path(self._scratch.name)
        catalogue = CheckpointCatalogue((), HashCache(scratch / "hashes.json"), files=(checkpoint,))
        dtype = torch.float32 if device.type == "cpu" else torch.float16
        machine = Machine(device, dtype, torch.float32)
        self._checkpoint = checkpoint.name
        adapters = Adapters((folder,), types=load_built_in().adapters.types)
        self._engine = Engine(
            catalogue,
            configs_dir,
            lambda: machine,
            models=ExtraModels(adapters=adapters),
            options=EngineOptions(hashing=False),
        )
        self._output = Output(scratch)

    def draw(self, drawing: PreviewSample) -> Image.Image:
        """The image, by DPM++ 2M on Karras' sigmas."""
        request = GenerationRequest(
            prompt=drawing.prompt,
            width=drawing.side_px,
            height=drawing.side_px,
            steps=drawing.steps,
            cfg_scale=drawing.cfg_scale,
            sampler="DPM++ 2M",
            scheduler="Karras",
            seed=drawing.seed,
            subseed=0,
            checkpoint=self._checkpoint,
            save_images=False,
            save_grid=False,
            settings=drawing.settings,
        )
        return generate(request, self._engine, self._output, Silent()).images[0].image

    def close(self) -> None:
        """Drop the temporary files."""
        self._scratch.cleanup()


def card_of(version: str, description: str, activation: str) -> bytes:
    """The JSON next to a LoRA, with the keys that the reference UI's editor writes; `version` is one of
    `models.detection.families.adapter_versions`, or ""."""
    card = {
        "description": description,
        "sd version": version,
        "activation text": activation,
        "preferred weight": 1.0,
        "negative text": "",
        "notes": "",
    }
    return (json.dumps(card, indent=4) + "\n").encode()


def write_card(lora: Path, version: str, description: str, activation: str) -> None:
    """Write `NAME.json` next to `NAME.safetensors`. Raises OSError."""
    write_atomic(lora.with_suffix(".json"), card_of(version, description, activation))
