"""`modules.localization`: the translations that lie in folders."""

from __future__ import annotations

from pathlib import Path

from modules.compat.refusal import refusing

localizations: dict[str, str] = {}
"""Files by the name of their language, after `list_localizations`."""


def list_localizations(dirname: str) -> None:
    """Look at a folder, and at those of extensions, for NAME.json."""
    from modules.compat.scripts import list_scripts

    localizations.clear()
    folder = Path(dirname)
    localizations.update({file.stem: str(file) for file in sorted(folder.glob("*.json"))} if folder.is_dir() else {})
    for file in list_scripts("localizations", ".json"):
        localizations[Path(file.filename).stem] = file.path


__getattr__ = refusing("localization", {"localization_js": "the page's translations are the program's."})
