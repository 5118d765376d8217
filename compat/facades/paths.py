"""`modules.paths`: where everything lies."""

from compat.facades import paths_internal
from compat.facades.refusal import refusing
from modules.system.paths import Paths as Paths

script_path = paths_internal.script_path
modules_path = paths_internal.modules_path
sd_path = script_path
"""The reference UI's copy of latent diffusion, which this program has not; its own folder."""
paths: dict[str, str] = {}
"""Folders of the reference UI's git repositories; there are none."""
_REASONS = {"Prioritize": "there are no git repositories of other programs to import from."}


def __getattr__(name: str) -> object:
    names = ("data_path", "models_path", "extensions_dir", "extensions_builtin_dir", "default_output_dir", "cwd")
    if name in names:
        return getattr(paths_internal, name)
    return refusing("paths", _REASONS)(name)
