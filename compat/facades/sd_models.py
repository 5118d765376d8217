"""`modules.sd_models`: the checkpoints that there are, and the one in use by its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compat.facades.model_view import CheckpointInfo, ModelView, loaded_model
from compat.facades.refusal import lazy
from compat.host import host_now, models_now
from compat.looked_up import LookedUp
from modules.errors import CheckpointError, FeatherweightError
from modules.models.files.header import read_metadata
from modules.system.bounded import read_json

__all__ = [
    "CheckpointInfo",
    "checkpoint_aliases",
    "checkpoint_tiles",
    "checkpoints_list",
    "get_closet_checkpoint_match",
    "list_models",
    "model_data",
    "model_hash",
    "reload_model_weights",
    "select_checkpoint",
    "unload_model_weights",
]


def _by_title() -> dict[str, CheckpointInfo]:
    return {info.title: CheckpointInfo(info) for info in host_now().engine.catalogue.entries}


def _by_alias() -> dict[str, CheckpointInfo]:
    return {alias: info for info in _by_title().values() for alias in info.ids}


checkpoints_list = LookedUp(_by_title)
checkpoint_aliases = LookedUp(_by_alias)
checkpoint_alisases = checkpoint_aliases  # as an old version of the reference UI spells it
checkpoints_loaded: dict[Any, Any] = {}
"""What the reference UI keeps in memory besides the model in use; the program keeps its own."""


def checkpoint_tiles(use_short: bool = False) -> list[str]:
    """The titles of all checkpoints."""
    return [info.short_title if use_short else info.title for info in host_now().engine.catalogue.entries]


def list_models() -> None:
    """Look at the folders of checkpoints again."""
    host_now().engine.catalogue.refresh()


def get_closet_checkpoint_match(search_string: str | None) -> CheckpointInfo | None:
    """The checkpoint that a title, a name, a hash or a part of a title means; None where none does."""
    found = host_now().engine.catalogue.find(search_string) if search_string else None
    return CheckpointInfo(found) if found is not None else None


get_closest_checkpoint_match = get_closet_checkpoint_match


def select_checkpoint() -> CheckpointInfo:
    """The checkpoint of the settings, or the first there is. Raises FileNotFoundError where there is none."""
    view = loaded_model()
    if view is None:
        try:
            host_now().engine.catalogue.default(None)
        except CheckpointError as error:
            raise FileNotFoundError(str(error)) from error
        raise FileNotFoundError("There is no checkpoint.")
    return view.sd_checkpoint_info


def model_hash(filename: str) -> str:
    """The short hash of infotexts before 2023."""
    return CheckpointInfo(filename).hash


def load_model(checkpoint_info: Any = None, already_loaded_state_dict: Any = None) -> ModelView | None:
    """Have a checkpoint loaded: it becomes the one of the settings."""
    return reload_model_weights(None, checkpoint_info)


def reload_model_weights(sd_model: Any = None, info: Any = None, forced_reload: bool = False) -> ModelView | None:
    """Make a checkpoint the one of the settings; it is loaded after the job that runs now."""
    if info is not None:
        title = getattr(info, "title", info)
        try:
            host_now().settings.update({"sd_model_checkpoint": str(title)})
        except FeatherweightError as error:
            raise ValueError(str(error)) from error
    return loaded_model()


def unload_model_weights(sd_model: Any = None, info: Any = None) -> None:
    """Free the model that is loaded; the next image loads it again."""
    models_now().unload()


def reload_model_weights_from_setting() -> None:
    """The program follows the setting by itself."""


def send_model_to_cpu(m: Any) -> None:
    """Where weights lie is decided by the settings of streaming and offloading."""


def send_model_to_device(m: Any) -> None:
    """Do as above."""


def send_model_to_trash(m: Any) -> None:
    """Do as above."""


class SdModelData:
    """`model_data`: holds the model in use."""

    @property
    def sd_model(self) -> ModelView | None:
        """Return the model by its names."""
        return loaded_model()

    @property
    def loaded_sd_models(self) -> list[ModelView]:
        """The one in use."""
        view = loaded_model()
        return [] if view is None else [view]

    def get_sd_model(self) -> ModelView | None:
        """Return the model by its names."""
        return loaded_model()

    def set_sd_model(self, v: Any, already_loaded: bool = False) -> None:
        """Accepted; the setting sd_model_checkpoint chooses the model."""


model_data = SdModelData()


def read_metadata_from_safetensors(filename: str) -> dict[str, Any]:
    """The metadata in the header of a .safetensors file."""
    found: dict[str, Any] = dict(read_metadata(Path(filename)))
    for key, text in found.items():
        if text.startswith("{"):
            try:
                found[key] = read_json(text)
            except ValueError:
                continue
    return found


def read_state_dict(checkpoint_file: str, print_global_state: bool = False, map_location: Any = None) -> dict[str, Any]:
    """The tensors of a file by name, without running what is in a pickle."""
    import torch

    if checkpoint_file.lower().endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(checkpoint_file, device=str(map_location or "cpu"))
    found = torch.load(checkpoint_file, map_location=map_location or "cpu", weights_only=True)
    state: dict[str, Any] = found.get("state_dict", found)
    return state


def get_state_dict_from_checkpoint(pl_sd: Any) -> dict[str, Any]:
    """The tensors of a checkpoint's dict, which may lie under "state_dict"."""
    found: dict[str, Any] = pl_sd.get("state_dict", pl_sd)
    return found


def setup_model() -> None:
    """The folders of checkpoints are there from the start."""


def enable_midas_autodownload() -> None:
    """Nothing is downloaded by itself."""


checkpoint_dict_replacements_sd1: dict[str, str] = {}
checkpoint_dict_replacements_sd2_turbo: dict[str, str] = {}
_WEIGHTS = "models are loaded by the program; set sd_model_checkpoint, in the settings or in p.override_settings."
_NAMES: tuple[str, ...] = ("load_model_weights", "get_checkpoint_state_dict", "apply_token_merging", "repair_config")
_NAMES += ("instantiate_from_config", "get_obj_from_str", "set_model_type", "set_model_fields", "SkipWritingToConfig")
_NAMES += (
    "transform_checkpoint_dict_key",
    "remap_checkpoint_dict",
    "sd_models_config",
    "check_fp8",
    "reuse_model_from_already_loaded",
)
_REASONS = dict.fromkeys(_NAMES, _WEIGHTS)
_REASONS["get_empty_cond"] = "prompts are encoded by the program."
__getattr__ = lazy("sd_models", {"model_dir": lambda: "Stable-diffusion", "model_path": lambda: _folder()}, _REASONS)


def _folder() -> str:
    return str(host_now().paths.checkpoint_dirs[0])
