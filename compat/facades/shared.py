"""`modules.shared`: settings, flags, state, styles, upscalers and the names of the model in use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compat.facades import paths_internal
from compat.facades.model_view import loaded_model, set_model
from compat.facades.option_info import OptionDiv, OptionHTML, OptionInfo, options_section
from compat.facades.options import Options, opts
from compat.facades.refusal import lazy
from compat.facades.shared_cmd_options import cmd_opts, parser
from compat.facades.shared_state import State, TotalTQDM, state
from compat.facades.style_book import StyleDatabase, prompt_styles
from compat.facades.upscaler import UpscalerData, UpscalerLanczos, sd_upscalers
from compat.host import has_host, host_now
from modules.processing.request.upscaling import LATENT_UPSCALE_MODES
from modules.system.model_folders import walk

__all__ = [
    "OptionDiv",
    "OptionHTML",
    "OptionInfo",
    "Options",
    "State",
    "StyleDatabase",
    "TotalTQDM",
    "UpscalerData",
    "UpscalerLanczos",
    "cmd_opts",
    "options_section",
    "options_templates",
    "opts",
    "parser",
    "prompt_styles",
    "sd_upscalers",
    "state",
    "total_tqdm",
]

options_templates = opts.data_labels
"""Settings by key; a new entry adds one."""
restricted_opts: set[str] = set()
total_tqdm = TotalTQDM()
settings_components: dict[str, Any] = {}
"""The page's fields of settings, which are no Gradio components here; always empty."""
hypernetworks: dict[str, str] = {}
loaded_hypernetworks: list[Any] = []
xformers_available = False
parallel_processing_allowed = True
latent_upscale_modes = {
    name: {"mode": mode.mode, "antialias": mode.antialias} for name, mode in LATENT_UPSCALE_MODES.items()
}
latent_upscale_default_mode = "Latent"
tab_names: list[str] = []
hide_dirs = {"visible": True}
ui_reorder_categories_builtin_items = ("sampler", "dimensions", "cfg", "seed", "scripts")
hf_endpoint = "https://huggingface.co"
script_path = paths_internal.script_path
sd_configs_path = paths_internal.sd_configs_path
sd_default_config = paths_internal.sd_default_config


def natural_sort_key(text: str) -> list[Any]:
    """For sorting names so that 10 comes after 9."""
    return [int(part) if part.isdigit() else part.lower() for part in re.split(r"([0-9]+)", text)]


def listfiles(dirname: str) -> list[str]:
    """The files of a folder in natural order, hidden ones left out."""
    files = [file for file in Path(dirname).iterdir() if file.is_file() and not file.name.startswith(".")]
    return [str(file) for file in sorted(files, key=lambda file: natural_sort_key(file.name))]


def walk_files(path: str, allowed_extensions: Any = None) -> Iterator[str]:
    """All files below a folder, of these suffixes."""
    allowed = {one.lower() for one in allowed_extensions or ()}
    for _, entries in walk(path):
        for entry in sorted(entries, key=lambda entry: natural_sort_key(entry.name)):
            if not entry.is_dir() and (not allowed or Path(entry.name).suffix.lower() in allowed):
                yield entry.path


def html_path(filename: str) -> str:
    """Where an HTML template of the reference UI would lie; this program has none."""
    return str(Path(script_path, "html", filename))


def html(filename: str) -> str:
    """A template's text; "" where there is none."""
    path = Path(html_path(filename))
    return path.read_text(encoding="utf-8") if path.exists() else ""


def list_checkpoint_tiles(use_short: bool = False) -> list[str]:
    """The titles of all checkpoints."""
    return [info.short_title if use_short else info.title for info in host_now().engine.catalogue.entries]


def refresh_checkpoints() -> None:
    """Look at the folders of checkpoints again."""
    host_now().engine.catalogue.refresh()


def list_samplers() -> list[str]:
    """The names of all samplers."""
    from compat.facades.sd_samplers import all_samplers_map

    return list(all_samplers_map)


def ui_reorder_categories() -> list[str]:
    """The parts of the form in their order."""
    return list(ui_reorder_categories_builtin_items)


def reload_hypernetworks() -> None:
    """Look at the folder of hypernetworks again."""
    host_now().engine.adapters.files.hypernetworks.refresh()


def focal_point() -> None:
    """Accepted; nothing is cropped by it."""


def _device() -> Any:
    from compat.facades.devices import model_device

    return model_device()


def _face_restorers() -> list[Any]:
    from compat.facades.face_restoration import restorers

    return restorers()


def _interrogator() -> Any:
    from compat.facades.interrogate import InterrogateModels

    return InterrogateModels()


_LAZY: dict[str, Callable[[], Any]] = {
    "sd_model": lambda: loaded_model(),
    "device": _device,
    "weight_load_location": lambda: "cpu",
    "face_restorers": _face_restorers,
    "interrogator": _interrogator,
    "config_filename": lambda: str(host_now().paths.config_file) if has_host() else "config.json",
    "styles_filename": lambda: [str(path) for path in host_now().paths.styles_files],
    "data_path": lambda: paths_internal.data_path,
    "extensions_dir": lambda: paths_internal.extensions_dir,
    "sd_model_file": lambda: paths_internal.sd_model_file,
    "default_sd_model_file": lambda: paths_internal.default_sd_model_file,
    "models_path": lambda: paths_internal.models_path,
    "demo": lambda: None,
    "progress_print_out": lambda: sys.stdout,
    "batch_cond_uncond": lambda: True,
    "clip_model": lambda: None,
    "sd_model_hash": lambda: getattr(loaded_model(), "sd_model_hash", None),
    "mem_mon": lambda: None,
    "gradio_theme": lambda: None,
    "theme": lambda: None,
    "latent_upscale_mode": lambda: latent_upscale_default_mode,
}
_REASONS = {
    "UiConfig": "the defaults of fields are those of ui-config.json, which the program reads itself.",
    "MemUsageMonitor": "GET /sdapi/v1/memory says what memory holds.",
    "reload_gradio_theme": "the page's looks are its own; style.css of an extension is added to it.",
    "instruct_pix2pix": "ask p.is_using_inpainting_conditioning.",
}
__getattr__ = lazy("shared", _LAZY, _REASONS)


def set_sd_model(model: Any) -> None:
    """Accepted; the model in use follows the setting sd_model_checkpoint."""
    set_model(model)
