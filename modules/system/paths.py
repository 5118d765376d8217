"""Where everything lies: the folders and files that follow from the command line, decided once at start."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from modules.errors import OutputError
from modules.system.extra_folders import FILE, read_extra_folders

# Kinds of upscaler files, which are also their folders below models/, and the flag that names another folder.
UPSCALER_FLAGS = {
    "ESRGAN": "esrgan_models_path",
    "RealESRGAN": "realesrgan_models_path",
    "BSRGAN": "bsrgan_models_path",
    "DAT": "dat_models_path",
    "HAT": None,
    "ScuNET": "scunet_models_path",
    "SwinIR": "swinir_models_path",
}
# The same for face restorers.
FACE_FLAGS = {"GFPGAN": "gfpgan_models_path", "Codeformer": "codeformer_models_path", "RestoreFormer": None}
_MODULE_FOLDERS = ("text_encoder", "text_encoders", "clip", "VAE")


DATA_VARIABLE = "FEATHERWEIGHT_DATA"
"""The environment variable that names the data folder where --data-dir does not: in containers, and for the installed
command `featherweight`."""


class PathFlags(Protocol):
    """The part of the command line that decides paths (`modules.flags.flags.Flags` fits); None: the default."""

    @property
    def data_dir(self) -> str | None: ...
    @property
    def models_dir(self) -> str | None: ...
    @property
    def config(self) -> str | None: ...
    @property
    def ckpt_dir(self) -> str | None: ...
    @property
    def vae_dir(self) -> str | None: ...
    @property
    def lora_dir(self) -> str | None: ...
    @property
    def lyco_dir_backcompat(self) -> str | None: ...
    @property
    def embeddings_dir(self) -> str | None: ...
    @property
    def hypernetwork_dir(self) -> str | None: ...
    @property
    def esrgan_models_path(self) -> str | None: ...
    @property
    def realesrgan_models_path(self) -> str | None: ...
    @property
    def bsrgan_models_path(self) -> str | None: ...
    @property
    def dat_models_path(self) -> str | None: ...
    @property
    def scunet_models_path(self) -> str | None: ...
    @property
    def swinir_models_path(self) -> str | None: ...
    @property
    def gfpgan_dir(self) -> str | None: ...
    @property
    def gfpgan_model(self) -> str | None: ...
    @property
    def gfpgan_models_path(self) -> str | None: ...
    @property
    def codeformer_models_path(self) -> str | None: ...
    @property
    def ui_config_file(self) -> str | None: ...
    @property
    def localizations_dir(self) -> str | None: ...
    @property
    def ui_settings_file(self) -> str | None: ...
    @property
    def styles_file(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Absolute paths. Tuples are searched in order; the first entry is where new files go.

    `root` holds the program (configs, built-in extensions, the shipped model); `data_dir` holds what the user makes.
    """

    root: Path
    data_dir: Path
    models_dir: Path
    model_config: Path
    checkpoint_dirs: tuple[Path, ...]
    vae_dirs: tuple[Path, ...]
    module_dirs: tuple[Path, ...]  # text encoders and VAEs in files of their own
    tiny_vae_dirs: tuple[Path, ...]
    approx_vae_dirs: tuple[Path, ...]
    lora_dirs: tuple[Path, ...]
    embeddings_dir: Path
    hypernetwork_dir: Path
    upscaler_dirs: Mapping[str, Path]  # by name: "ESRGAN", "SwinIR" ...
    face_dirs: Mapping[str, Path]  # by name: "GFPGAN", "Codeformer" ...
    face_files: Mapping[str, Path]  # by name of the restorer, where the command line names a file
    outputs_dir: Path
    config_file: Path
    ui_config_file: Path
    styles_files: tuple[Path, ...]  # may hold wildcards in their last part
    params_file: Path
    jobs_file: Path
    cache_dir: Path
    localizations_dir: Path
    extensions_dir: Path
    builtin_extensions_dir: Path
    extra_dirs: Mapping[str, tuple[Path, ...]]  # by name below models/, from `extra_folders_file`; read beside ours
    notices: tuple[str, ...] = ()  # what is wrong with that file

    @property
    def extra_folders_file(self) -> Path:
        """Names folders of models that lie elsewhere."""
        return self.data_dir / FILE

    @property
    def embeddings_dirs(self) -> tuple[Path, ...]:
        """Where embeddings are read."""
        return (self.embeddings_dir, *self.extra_dirs.get("embeddings", ()))

    @property
    def hypernetwork_dirs(self) -> tuple[Path, ...]:
        """Where hypernetworks are read."""
        return (self.hypernetwork_dir, *self.extra_dirs.get("hypernetworks", ()))

    @property
    def all_upscaler_dirs(self) -> Mapping[str, tuple[Path, ...]]:
        """Where upscalers are read, by name."""
        return {name: (path, *self.extra_dirs.get(name, ())) for name, path in self.upscaler_dirs.items()}

    @property
    def all_face_dirs(self) -> Mapping[str, tuple[Path, ...]]:
        """Where face restorers are read, by name."""
        return {name: (path, *self.extra_dirs.get(name, ())) for name, path in self.face_dirs.items()}

    @property
    def offload_dir(self) -> Path:
        """Where weights that are streamed from disk are written, if --offload-dir names no other place."""
        return self.cache_dir / "offload"

    @property
    def extension_dirs(self) -> tuple[Path, ...]:
        """Ours first, so that a user's extension can build on them."""
        return (self.builtin_extensions_dir, self.extensions_dir)

    def ensure(self) -> None:
        """Create the folders that the program writes to or tells the user about; existing ones stay as they are.

        Raises `OutputError` naming the folder that cannot be created. Folders given for reading only (--ckpt-dir and
        so on) are not created: a misspelt one should be noticed, not made.
        """
        made_here = (self.checkpoint_dirs[0], self.vae_dirs[0], self.tiny_vae_dirs[0], self.lora_dirs[0])
        for path in (
            *(self.data_dir, self.models_dir, *made_here, self.upscaler_dirs["ESRGAN"]),
            *(self.embeddings_dir, self.hypernetwork_dir),
            *(self.outputs_dir, self.cache_dir, self.extensions_dir, self.data_dir / "localizations"),
        ):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"The folder {path} cannot be created: {error.strerror}. "
                    "Choose a writable place with --data-dir or the flag of this folder."
                ) from error

    def as_flags(self) -> dict[str, object]:
        """The paths under the reference UI's flag names, to fill in flags that were not given (`public_flags`)."""
        return {
            "data_dir": str(self.data_dir),
            "models_dir": str(self.models_dir),
            "config": str(self.model_config),
            "embeddings_dir": str(self.embeddings_dir),
            "hypernetwork_dir": str(self.hypernetwork_dir),
            "lora_dir": str(self.lora_dirs[0]),
            **{flag: str(self.upscaler_dirs[name]) for name, flag in UPSCALER_FLAGS.items() if flag},
            **{flag: str(self.face_dirs[name]) for name, flag in FACE_FLAGS.items() if flag},
            "ui_config_file": str(self.ui_config_file),
            "localizations_dir": str(self.localizations_dir),
            "ui_settings_file": str(self.config_file),
            "styles_file": [str(path) for path in self.styles_files],
            "gradio_allowed_path": [str(self.data_dir)],
        }


def resolve_paths(flags: PathFlags, root: Path) -> Paths:
    """Decide all paths; touches nothing on disk, and reads only `model-folders.json` of the data folder.

    Folders given on the command line are relative to the working directory, defaults to the data folder, as in the
    reference UI. --ckpt-dir and --vae-dir are searched besides the usual folder; the other folder flags replace it.
    The program's own model folders are always searched last, so that the shipped model, its LoRAs and its small VAE are
    found with --data-dir too. Folders of `model-folders.json` are read besides, whatever the flags say.
    """
    root = root.absolute()
    data_dir = _given(flags.data_dir) or _given(os.environ.get(DATA_VARIABLE)) or root
    extra, notices = read_extra_folders(data_dir / FILE)
    models_dir = _given(flags.models_dir) or data_dir / "models"
    shipped_checkpoints = root / "models" / "Stable-diffusion"
    return Paths(
        root=root,
        data_dir=data_dir,
        models_dir=models_dir,
        model_config=_given(flags.config) or root / "configs" / "v1-inference.yaml",
        checkpoint_dirs=_distinct(
            *(models_dir / "Stable-diffusion", _given(flags.ckpt_dir)),
            *(*extra.get("Stable-diffusion", ()), shipped_checkpoints),
        ),
        vae_dirs=_distinct(models_dir / "VAE", _given(flags.vae_dir), *extra.get("VAE", ())),
        module_dirs=_distinct(
            *(models_dir / name for name in _MODULE_FOLDERS),
            _given(flags.vae_dir),
            *(path for name in _MODULE_FOLDERS for path in extra.get(name, ())),
        ),
        tiny_vae_dirs=_distinct(models_dir / "VAE-taesd", *extra.get("VAE-taesd", ()), root / "models" / "VAE-taesd"),
        approx_vae_dirs=_distinct(models_dir / "VAE-approx", *extra.get("VAE-approx", ())),
        lora_dirs=_distinct(
            _given(flags.lora_dir) or models_dir / "Lora",
            _given(flags.lyco_dir_backcompat) or models_dir / "LyCORIS",
            *(*extra.get("Lora", ()), *extra.get("LyCORIS", ())),
            root / "models" / "Lora",
        ),
        embeddings_dir=_given(flags.embeddings_dir) or data_dir / "embeddings",
        hypernetwork_dir=_given(flags.hypernetwork_dir) or models_dir / "hypernetworks",
        upscaler_dirs={
            name: _given(getattr(flags, flag) if flag else None) or models_dir / name
            for name, flag in UPSCALER_FLAGS.items()
        },
        face_dirs={
            name: _given(getattr(flags, flag) if flag else None)
            or (_given(flags.gfpgan_dir) if name == "GFPGAN" else None)
            or models_dir / name
            for name, flag in FACE_FLAGS.items()
        },
        face_files={"GFPGAN": path} if (path := _given(flags.gfpgan_model)) else {},
        outputs_dir=data_dir / "outputs",
        config_file=_given(flags.ui_settings_file) or data_dir / "config.json",
        ui_config_file=_given(flags.ui_config_file) or data_dir / "ui-config.json",
        styles_files=tuple(Path(name).absolute() for name in flags.styles_file) or (data_dir / "styles.csv",),
        params_file=data_dir / "params.txt",
        jobs_file=data_dir / "jobs.sqlite",
        cache_dir=data_dir / "cache",
        localizations_dir=_given(flags.localizations_dir) or data_dir / "localizations",
        extensions_dir=data_dir / "extensions",
        builtin_extensions_dir=root / "extensions-builtin",
        extra_dirs=extra,
        notices=notices,
    )


def _given(name: str | None) -> Path | None:
    return Path(name).expanduser().absolute() if name else None


def _distinct(*paths: Path | None) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(_existing(paths)))


def _existing(paths: Iterable[Path | None]) -> Iterable[Path]:
    return (path for path in paths if path is not None)
