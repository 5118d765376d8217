"""Operations of the Extras tab, under the name that authors of extensions for the reference UI import.

A subclass of `ScriptPostprocessing` in a file below `scripts/` of an extension is an operation; see docs/extensions.md.
"""

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing

__all__ = ["Field", "PostprocessedImage", "ScriptPostprocessing"]
