"""Taking over a folder of the reference UI or of Forge: models by their paths, styles, settings, defaults, outputs.

Nothing of ours is overwritten, nothing is changed there, and doing it again changes nothing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from lib_takeover.reference_folder import ReferenceFolder
from modules.errors import FeatherweightError, InvalidValueError
from modules.history.store import History
from modules.prompting.styles import StyleBook
from modules.settings.definitions import DIRECTORY_KEYS
from modules.settings.setting import Setting
from modules.settings.store import SettingsStore, migrate
from modules.settings.values import as_json, exact_setting
from modules.system.atomic_files import output_error, write_atomic
from modules.system.bounded import read_json_file
from modules.system.extra_folders import extra_folders_text, read_extra_folders
from modules.system.paths import Paths
from modules.ui.form.old_defaults import current_entries

TABS = ("txt2img/", "img2img/", "extras/", "modelmerger/")
FIELDS = ("/value", "/visible", "/minimum", "/maximum", "/step")
USUAL = {
    f"{tab}/{label}/value": value
    for tab in ("txt2img", "img2img")
    for label, value in (
        *(("Sampling steps", 20), ("Width", 512), ("Height", 512), ("CFG Scale", 7.0)),
        *(("Batch count", 1), ("Batch size", 1), ("Prompt", ""), ("Negative prompt", "")),
        *(("Sampling method", "DPM++ 2M"), ("Schedule type", "Automatic"), ("Seed", -1), ("Variation seed", -1)),
        *(("Variation strength", 0), ("Resize seed from width", 0), ("Resize seed from height", 0)),
        *(("Hires sampling method", "Use same sampler"), ("Hires schedule type", "Use same scheduler")),
        ("Switch at", 0.8),
    )
}
"""What the reference UI writes of itself: nobody's choice, and not to stand against a model's own size and scale."""
ABOUT_THERE = frozenset(("sd_checkpoint_hash", "disabled_extensions", "disable_all_extensions"))
"""Settings about the other program's own files."""
AS_HERE = (("use_scale_latent_for_hires_fix", True),)
"""Settings of old versions with a value by which the other program did what this one does."""
NOT_FROM_ELSEWHERE = ("system", "API")
"""Sections of settings that say what the program may do on this machine: their owner sets them here."""
SHOWN = 12


@dataclass
class Report:
    """Record of what was taken, what stays as it is here, and what has no counterpart: each a list of sentences."""

    taken: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """All of it for people."""
        headings = (
            ("Taken over:", self.taken or ["nothing new"]),
            ("Left as it is here:", self.kept),
            ("Without a counterpart:", self.without),
        )
        return [line for title, rows in headings if rows for line in (title, *(f"  {row}" for row in rows))]


@dataclass(frozen=True)
class Target:
    """Receiver of what is taken over. `import_images` is asked for each folder of outputs that the history does not
    know."""

    paths: Paths
    settings: SettingsStore
    history: History
    import_images: Callable[[Path], None]


def take_over(folder: Path, target: Target) -> Report:
    """Take over all that can be. Raises `InvalidValueError` for a folder that is none, `OutputError`."""
    found = ReferenceFolder.look(folder)
    if found.folder in (target.paths.root, target.paths.data_dir):
        raise InvalidValueError(f"{found.folder} is this program's own folder. Give that of the other program.")
    report = Report()
    _take_models(found, target, report)
    _take_styles(found, target, report)
    _take_settings(found, target, report)
    _take_defaults(found, target, report)
    _take_outputs(found, target, report)
    if found.extensions:
        report.without.append(f"extensions, which have to be ones for this program: {_listed(found.extensions)}")
    if found.flags:
        report.without.append(f"flags of its start file; give them to launch.py: {_listed(found.flags)}")
    if found.other_files:
        report.without.append(f"files to copy by hand where they are wanted: {_listed(found.other_files)}")
    report.without += found.faults
    return report


def _take_models(found: ReferenceFolder, target: Target, report: Report) -> None:
    file = target.paths.extra_folders_file
    known, faults = read_extra_folders(file)
    if faults:
        raise InvalidValueError(f"{faults[0]} Nothing was taken over.")
    folders = {kind: list(listed) for kind, listed in known.items()}
    for kind, listed in found.models.items():
        for path, count in listed:
            if target.paths.data_dir.is_relative_to(path.resolve()):
                report.without.append(f"{kind}: {path} holds this program's own folder")
                continue
            if path in folders.get(kind, ()) or path in _own_folders(target.paths):
                report.kept.append(f"{kind}: {path} is read already")
                continue
            folders.setdefault(kind, []).append(path)
            report.taken.append(f"{kind}: {_files(count)} in {path}, read from there after the next start")
    if any(len(listed) > len(known.get(kind, ())) for kind, listed in folders.items()):
        _write(file, extra_folders_text(folders))
    for path, count in found.other_models:
        report.without.append(f"{_files(count)} in {path}: nothing here reads that kind of model from elsewhere")


def _own_folders(paths: Paths) -> tuple[Path, ...]:
    return (
        *(*paths.checkpoint_dirs, *paths.vae_dirs, *paths.lora_dirs, paths.embeddings_dir, paths.hypernetwork_dir),
        *(*paths.upscaler_dirs.values(), *paths.face_dirs.values()),
    )


def _take_styles(found: ReferenceFolder, target: Target, report: Report) -> None:
    theirs = StyleBook.read((found.styles,))
    report.without += [f"{path} was left out: {reason}" for path, reason in theirs.damaged.items()]
    book = StyleBook.read(target.paths.styles_files)
    ours = book.styles
    new, clashes = [], []
    for name, style in theirs.styles.items():
        if name not in ours:
            try:
                book = book.with_style(style)
            except InvalidValueError as error:
                report.without.append(f"a style: {error}")
                continue
            new.append(name)
        elif ours[name] != style:
            clashes.append(name)
    if new:
        book.save()
        report.taken.append(f"{_count(len(new), 'style')}: {_listed(new)}")
    if clashes:
        report.kept.append(f"styles of the same name with other texts, which stay as they are here: {_listed(clashes)}")


def _take_settings(found: ReferenceFolder, target: Target, report: Report) -> None:
    current = target.settings.current
    changes: dict[str, object] = {}
    own, locked, unknown = [], [], []
    for key, value in migrate(found.config).items():
        setting = exact_setting(key)
        if key in ABOUT_THERE or value is None:  # null: never chosen there
            continue
        if (key, value) in AS_HERE or (setting is not None and setting.hidden):
            continue
        if setting is None:
            unknown.append(key)
            continue
        try:
            checked = setting.check(value)
        except ValueError as error:
            report.without.append(f"setting {key}: {error}")
            continue
        if checked in (current[key], setting.default) or _is_folder_there(key, value, found.folder):
            continue
        if reason := _left_out(setting, value):
            report.without.append(f"setting {key}: {reason}")
            continue
        if current[key] != setting.default:
            own.append(key)
        elif key in target.settings.locked:
            locked.append(key)
        else:
            changes[key] = as_json(checked)
    if changes:
        refused = _store(target.settings, changes)
        report.without += refused
        if changes:
            report.taken.append(f"{_count(len(changes), 'setting')}: {_listed(changes)}")
    if own:
        report.kept.append(f"settings that you changed here: {_listed(own)}")
    if locked:
        report.kept.append(f"settings that this start's options lock: {_listed(locked)}")
    if unknown:
        report.without.append(f"{_count(len(unknown), 'setting')} unknown here: {', '.join(sorted(unknown))}")


def _store(settings: SettingsStore, changes: dict[str, object]) -> list[str]:
    """Store all at once; where one is refused by what listens to it, one by one. Takes refused ones out of `changes`
    and says why."""
    try:
        settings.update(changes)
        return []
    except FeatherweightError:
        refused = []
        for key, value in list(changes.items()):
            try:
                settings.update({key: value})
            except FeatherweightError as error:
                del changes[key]
                refused.append(f"setting {key}: {error}")
        return refused


def _left_out(setting: Setting, value: object) -> str:
    """Why a setting is not to come from somebody else's folder; "" for one that may."""
    if setting.section.id in NOT_FROM_ELSEWHERE:
        return f"{setting.section.title} is set here only, because it says what the program may do on this machine"
    text = value.replace("\\", "/") if isinstance(value, str) else ""
    if setting.key in DIRECTORY_KEYS and (is_path_elsewhere(text) or ".." in text.split("/")):
        return f"{value} lies outside of the folder; choose it in the settings if images are to be saved there"
    if setting.key == "font" or (setting.key == "localization" and "/" in text):
        return f"{value} names a file by its path; choose it in the settings"
    return ""


def is_path_elsewhere(text: str) -> bool:
    """Whether a path is a full one, of this or of another system."""
    return text.startswith(("/", "~")) or PureWindowsPath(text).drive != ""


def _is_folder_there(key: str, value: object, folder: Path) -> bool:
    """Whether a setting has images saved below the other program's folder: new ones go to ours."""
    return key.startswith("outdir_") and isinstance(value, str) and Path(value).is_relative_to(folder)


def _take_defaults(found: ReferenceFolder, target: Target, report: Report) -> None:
    theirs = current_entries(found.ui_config)
    entries = {
        key: value
        for key, value in theirs.items()
        if key.startswith(TABS) and key.endswith(FIELDS) and USUAL.get(key, _NOTHING) != value
    }
    if len(theirs) > len(entries):
        left = _count(len(theirs) - len(entries), "entry", "entries")
        report.without.append(f"{left} of ui-config.json: usual values, or tabs and scripts that are not here")
    if not entries:
        return
    file = target.paths.ui_config_file
    ours = _read_entries(file)
    new = {key: value for key, value in entries.items() if key not in ours}
    clashes = [key for key, value in entries.items() if key in ours and ours[key] != value]
    if new:
        _write(file, (json.dumps({**ours, **new}, indent=4, ensure_ascii=False) + "\n").encode())
        report.taken.append(
            f"{_count(len(new), 'default')} of the forms (ui-config.json), from the next Reload UI on; what a control "
            "cannot take is named then"
        )
    if clashes:
        report.kept.append(f"defaults of your own: {_listed(clashes)}")


_NOTHING = object()


def _read_entries(file: Path) -> Mapping[str, Any]:
    try:
        read = read_json_file(file, constant=float)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{file} cannot be read: {error}. Correct or delete it, then import again.") from error
    if not isinstance(read, dict):
        raise InvalidValueError(f"{file} holds no JSON object. Correct or delete it, then import again.")
    return read


def _take_outputs(found: ReferenceFolder, target: Target, report: Report) -> None:
    known = {item["folder"] for item in target.history.imports.all()}
    for path in found.outputs:
        if str(path) in known:
            report.kept.append(f"images in {path} are in the history already, or being read")
            continue
        try:
            target.import_images(path)
        except InvalidValueError as error:
            report.without.append(f"images: {error}")
            continue
        report.taken.append(f"images in {path}: into the history, in the background")


def _write(file: Path, data: bytes) -> None:
    try:
        write_atomic(file, data)
    except OSError as error:
        raise output_error(file.name, file.parent, error) from error


def _listed(names: Any) -> str:
    rows = list(names)
    return ", ".join(rows[:SHOWN]) + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def _files(number: int) -> str:
    return _count(number, "file")
