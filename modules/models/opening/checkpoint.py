"""The one way into a checkpoint: a file or a folder of any layout as one view with the names that our key maps have.

The header is gone through once: each rule gives its tensors other names or adds some, and the view is made at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from modules.models.detection.families import checkpoint_family, is_diffusers_file, whole_names
from modules.models.families.family import ModelFamily
from modules.models.families.registry import FAMILIES, all_families, denoiser_family_of
from modules.models.names.component import Header
from modules.models.names.fused import unfuse
from modules.models.names.view import Draft, View, open_whole
from modules.models.opening.diffusers import as_original, folder_draft
from modules.models.opening.names import checkpoint_names, part_names
from modules.models.opening.parts import add_parts, add_text_encoders

Wants = Callable[[ModelFamily], bool]
RENAMINGS: tuple[tuple[str, Callable[[Header], Mapping[str, str] | None]], ...] = (
    ("", whole_names),
    ("", part_names),
    (".gguf", checkpoint_names),
)
"""By ending of a file's name ("": any), in this order: other names of its tensors, none where a rule has none."""


def open_checkpoint(
    path: Path,
    with_optional: bool | Wants = False,
    optional_beside: bool = True,
    modules: Sequence[Path] = (),
    alone: bool = False,
) -> View:
    """Open a checkpoint, a file or a folder in the diffusers layout; raises `CheckpointError` for a file that is not
    what its suffix says. A text encoder that its family can do without, inside of it or (`optional_beside`) in a file
    of its own, is there only if it is asked for, of all families or of those for which a function says so, which is
    called once at most. `modules`: files with its text encoders and VAE, see `add_parts`. `alone`: no file near it adds
    a part."""
    asked: list[bool] = []

    def wants(family: ModelFamily) -> bool:
        if not asked:
            asked.append(with_optional(family) if callable(with_optional) else with_optional)
        return asked[0]

    with ExitStack() as files:
        if path.is_dir():
            draft = folder_draft(path, files, wants)
        else:
            draft = Draft.of(files.enter_context(open_whole(path)), files)
            for ending, names_of in RENAMINGS:
                if path.name.lower().endswith(ending) and (names := names_of(draft.header)):
                    draft.rename(names)
        if is_diffusers_file(draft.header):
            as_original(draft)
        if not alone:
            add_parts(draft, modules)
        signs, known = checkpoint_family(draft.header), denoiser_family_of(draft.header)
        is_wanted = signs is not None and wants(FAMILIES.get(signs.name))
        if known is not None and not alone:
            add_text_encoders(draft, known.texts.external, is_wanted and optional_beside)
        if known is not None and known.texts.optional is not None and not is_wanted:
            level = known.texts.optional.level
            draft.put({key: place for key, place in draft.places.items() if not key.startswith(level)})
        unfuse(draft, all_families())
        return draft.view()
    raise AssertionError("an exit stack suppresses nothing")
