"""`modules.paths_internal`: where everything lies, as texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from compat.facades.refusal import lazy
from compat.host import has_host, host_now

modules_path = str(Path(__file__).resolve().parents[2] / "modules")
script_path = str(Path(modules_path).parent)
cwd = str(Path.cwd())
sd_configs_path = str(Path(script_path) / "configs")
sd_default_config = str(Path(sd_configs_path) / "v1-inference.yaml")
extensions_builtin_dir = str(Path(script_path) / "extensions-builtin")
roboto_ttf_file = str(Path(modules_path) / "images" / "fonts" / "Roboto-Regular.ttf")
normalized_filepath = str


def _of_paths(name: str, *below: str) -> str:
    if not has_host():
        return str(Path(script_path, *below))
    return str(getattr(host_now().paths, name))


_LAZY: dict[str, Any] = {
    "data_path": lambda: _of_paths("data_dir"),
    "models_path": lambda: _of_paths("models_dir", "models"),
    "default_output_dir": lambda: _of_paths("outputs_dir", "outputs"),
    "extensions_dir": lambda: _of_paths("extensions_dir", "extensions"),
    "config_states_dir": lambda: str(Path(_of_paths("data_dir")) / "config_states"),
    "sd_model_file": lambda: str(Path(_of_paths("models_dir", "models")) / "Stable-diffusion" / "model.ckpt"),
    "default_sd_model_file": lambda: str(Path(_of_paths("models_dir", "models")) / "Stable-diffusion" / "model.ckpt"),
    "cmd_opts_pre": lambda: __import__("compat.facades.shared_cmd_options", fromlist=["cmd_opts"]).cmd_opts,
    "commandline_args": lambda: sys.argv[1:],
}
_REASONS = {"parser_pre": "flags of an extension belong into its preload.py."}
__getattr__ = lazy("paths_internal", _LAZY, _REASONS)
