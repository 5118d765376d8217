"""Text encoders that lie in files of their own beside a checkpoint, as many SD3 files want it.

Their tensors appear under the names that they would have inside of the checkpoint.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from modules.errors import CheckpointError
from modules.models.closing import Closing
from modules.models.layouts.keymaps.mmdit import CLIP_G_PREFIX, CLIP_L_PREFIX, SIGN, T5_LEVEL, T5_PREFIX
from modules.models.reading.tensor_file import TensorEntry
from modules.models.reading.tensor_source import TensorSource, open_tensors

FOLDERS = ("text_encoder", "text_encoders", "CLIP", "clip")
SUFFIX = ".safetensors"
HIGHEST = 4  # folders above the checkpoint in which `FOLDERS` are looked for


@dataclass(frozen=True)
class ExternalTextEncoder:
    """An encoder: the name of its file, or with `any_ending` how that begins, the beginning of its names in a whole
    checkpoint, and a tensor of the checkpoints that want it."""

    stem: str
    prefix: str
    wanted_by: str
    any_ending: bool = False
    is_optional: bool = False


EXTERNAL_ENCODERS = (
    ExternalTextEncoder("clip_l", CLIP_L_PREFIX, wanted_by=SIGN),
    ExternalTextEncoder("clip_g", CLIP_G_PREFIX, wanted_by=SIGN),
    ExternalTextEncoder("t5xxl", T5_PREFIX, wanted_by=SIGN, any_ending=True, is_optional=True),
)
OPTIONAL_LEVELS = (T5_LEVEL,)
"""The beginnings of the names of encoders that can be left out, and of what lies beside them in whole checkpoints."""
OWN_T5_TOKENIZER = "tokenizer_3/tokenizer.json"  # in a folder of diffusers
T5_TOKENIZERS = ("t5_tokenizer.json", "t5xxl/tokenizer.json")


class WithExternalEncoders(Closing):
    """A `TensorSource` over a checkpoint and the files of its text encoders. Closes them all."""

    def __init__(self, file: TensorSource, external_encoders: Mapping[Path, str]) -> None:
        """`companions`: files, and the beginning that their names get. Raises `CheckpointError` for a damaged one."""
        self.path = file.path
        self.metadata = file.metadata
        with ExitStack() as stack:
            stack.push(file)
            self._origins: dict[str, tuple[TensorSource, str]] = {key: (file, key) for key in file.entries}
            entries: dict[str, TensorEntry] = dict(file.entries)
            self.has_offsets = file.has_offsets
            for path, prefix in external_encoders.items():
                other = stack.enter_context(open_tensors(path))
                self.has_offsets &= other.has_offsets
                for key, entry in other.entries.items():
                    name = f"{prefix}.{key}"
                    self._origins[name] = (other, key)
                    entries[name] = replace(entry, file=path)
            self.entries: Mapping[str, TensorEntry] = entries
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._stack.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in its file, see `TensorSource`."""
        file, key = self._origins[name]
        return file.read(key, into)


def with_external_encoders(file: TensorSource, with_optional: bool = False) -> TensorSource:
    """`file` with the text encoders that it lacks and that lie near, optional ones only where they are asked for;
    `file` itself where none is needed or found."""
    wanted = [
        item for item in EXTERNAL_ENCODERS if item.wanted_by in file.entries and (with_optional or not item.is_optional)
    ]
    missing = [item for item in wanted if not any(key.startswith(f"{item.prefix}.") for key in file.entries)]
    found = {path: item.prefix for item in missing if (path := _find(file.path, item)) is not None}
    return WithExternalEncoders(file, found) if found else file


def t5_tokenizer_file(checkpoint: Path) -> Path:
    """The tokenizer of T5, which no checkpoint file holds: that of a folder in the diffusers layout, else one of
    `T5_TOKENIZERS` in a folder for text encoders, the nearest to the checkpoint. Raises `CheckpointError` that names
    the file and the place."""
    own = checkpoint / OWN_T5_TOKENIZER
    if own.is_file():
        return own
    for folder in _folders(checkpoint):
        for name in T5_TOKENIZERS:
            if (folder / name).is_file():
                return folder / name
    raise CheckpointError(
        f"{checkpoint.name}: T5 is there, and its tokenizer is not. Put T5's tokenizer.json (of t5-v1_1-xxl) into the "
        f"folder text_encoder beside the checkpoints' folder, as models/text_encoder/{T5_TOKENIZERS[0]}, or switch "
        "Enable T5 off in Settings > Stable Diffusion 3."
    )


def _find(checkpoint: Path, item: ExternalTextEncoder) -> Path | None:
    """The file `STEM.safetensors` in a folder for text encoders, the nearest to the checkpoint; with `any_ending` else
    the first `STEM*.safetensors` there."""
    for folder in _folders(checkpoint):
        path = folder / f"{item.stem}{SUFFIX}"
        if path.is_file():
            return path
        others = sorted(folder.glob(f"{item.stem}*{SUFFIX}")) if item.any_ending else []
        if others:
            return others[0]
    return None


def _folders(checkpoint: Path) -> Iterator[Path]:
    for parent in list(checkpoint.absolute().parents)[:HIGHEST]:
        for name in FOLDERS:
            yield parent / name
