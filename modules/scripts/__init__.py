"""The extension API; `import modules.scripts as scripts` gives an extension what it subclasses."""

from modules.scripts.loading import program_now
from modules.scripts.program import Program
from modules.scripts.script import (
    AlwaysVisible,
    MaskBlendArgs,
    OnComponent,
    PostprocessBatchListArgs,
    PostprocessImageArgs,
    PostProcessMaskOverlayArgs,
    PostSampleArgs,
    Script,
)

__all__ = [
    "AlwaysVisible",
    "MaskBlendArgs",
    "OnComponent",
    "PostProcessMaskOverlayArgs",
    "PostSampleArgs",
    "PostprocessBatchListArgs",
    "PostprocessImageArgs",
    "Program",
    "Script",
    "program_now",
]
