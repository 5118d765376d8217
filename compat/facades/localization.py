"""`modules.localization`: the translations that lie in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compat.facades.refusal import refusing
from compat.host import PROCESS, has_host, host_now

_REASONS = {"localization_js": "the page's translations are the program's."}


def list_localizations(dirname: str) -> None:
    """Look at a folder, and at those of extensions, for NAME.json; `localizations` has them then by NAME."""
    from compat.facades.scripts import list_scripts

    found = PROCESS.localizations
    found.clear()
    folder = Path(dirname)
    found.update({file.stem: str(file) for file in sorted(folder.glob("*.json"))} if folder.is_dir() else {})
    for file in list_scripts("localizations", ".json"):
        found[Path(file.filename).stem] = file.path


def __getattr__(name: str) -> Any:
    if name != "localizations":
        return refusing("localization", _REASONS)(name)
    if not PROCESS.localizations and has_host():
        list_localizations(str(host_now().paths.localizations_dir))
    return PROCESS.localizations
