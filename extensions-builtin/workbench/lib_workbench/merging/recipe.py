"""The metadata of a merged checkpoint: whose it takes over, and how it was made.

The recipe has the reference UI's names: `sd_merge_recipe` says what was done, `sd_merge_models` which models went into
it, by sha256, with those that went into them.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lib_workbench.merging.conversion import METADATA_KEY
from lib_workbench.merging.request import MergeRequest
from modules.models.files.catalogue import CheckpointInfo, old_hash
from modules.models.files.header import DECLARATIONS_KEY
from modules.system.bounded import read_json
from modules.version import PROGRAM_VERSION

log = logging.getLogger(__name__)

RECIPE_KEY, MODELS_KEY = "sd_merge_recipe", "sd_merge_models"
NOT_COPIED = frozenset({"format", METADATA_KEY, DECLARATIONS_KEY, "modelspec.hash_sha256", RECIPE_KEY, MODELS_KEY})
"""What is true of one file only."""


def merge_metadata(
    request: MergeRequest,
    hashed: Sequence[CheckpointInfo],
    metadata: Sequence[Mapping[str, str]],
    extra_channels: int | None = None,
) -> dict[str, str]:
    """Return what to write into the result's header. `hashed` are the models with their hashes (None: not computed),
    `metadata` what their files say, both in the order A, B, C."""
    if not request.save_metadata:
        return {}
    result = copied_metadata(metadata) if request.copy_metadata else {}
    result |= request.metadata
    result["format"] = "pt"
    if request.add_recipe:
        result[RECIPE_KEY] = json.dumps(_recipe(request, hashed, extra_channels))
        result[MODELS_KEY] = json.dumps(_models(hashed, metadata))
    return result


def copied_metadata(metadata: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All that the files say and that stays true of a merged one; where they differ, the first one's."""
    result: dict[str, str] = {}
    for table in reversed(metadata):
        result |= {name: value for name, value in table.items() if name not in NOT_COPIED}
    return result


def _recipe(request: MergeRequest, hashed: Sequence[CheckpointInfo], extra_channels: int | None) -> dict[str, Any]:
    a, b, c = (*(info.sha256 for info in hashed), None, None)[:3]
    return {
        "type": "webui",
        "primary_model_hash": a,
        "secondary_model_hash": b,
        "tertiary_model_hash": c,
        "interp_method": request.method.value,
        "multiplier": request.multiplier,
        "save_as_half": request.storage == "fp16",
        "custom_name": request.custom_name,
        "config_source": request.config_source.value,
        "bake_in_vae": request.vae.name if request.vae else "None",
        "discard_weights": request.discard.pattern if request.discard else "",
        "is_inpainting": extra_channels == 9,
        "is_instruct_pix2pix": extra_channels == 8,
        "storage": request.storage,
        "version": PROGRAM_VERSION,
    }


def _models(hashed: Sequence[CheckpointInfo], metadata: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for info, table in zip(hashed, metadata, strict=True):
        earlier = _table(info, table, MODELS_KEY)
        if info.sha256:
            recipe = _table(info, table, RECIPE_KEY) or None
            models[info.sha256] = {
                "name": info.name,
                "legacy_hash": old_hash(info.path),
                "sd_merge_recipe": recipe,
            }
        models |= {sha256: entry for sha256, entry in earlier.items() if sha256 not in models}
    return models


def _table(info: CheckpointInfo, metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    """A table that an earlier merge wrote; empty where there is none or it cannot be read."""
    try:
        content = read_json(metadata.get(key, "{}"))
    except ValueError as error:
        log.warning("%s: its %s cannot be read (%s) and is left out.", info.name, key, error)
        return {}
    return content if isinstance(content, dict) else {}
