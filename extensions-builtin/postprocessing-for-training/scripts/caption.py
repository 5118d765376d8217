"""A text file with what each image shows, next to it."""

from typing import Any

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing


class Caption(ScriptPostprocessing):
    """Captions by the models of Interrogate."""

    name = "Caption"
    order = 4040
    fields = (
        Field(name="enable", label=name, default=False, elem_id="postprocess_caption", is_switch=True),
        Field(name="deepbooru", label="Deepbooru", default=False, elem_id="postprocess_caption_deepbooru"),
        Field(name="blip", label="BLIP", default=True, elem_id="postprocess_caption_blip"),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if not args["enable"] or self.program is None:
            return
        kinds = [kind for kind, wanted in (("deepbooru", args["deepbooru"]), ("clip", args["blip"])) if wanted]
        captions = [pp.caption] if pp.caption else []
        captions += [self.program.caption(pp.image.convert("RGB"), kind, pp.settings) for kind in kinds]
        pp.caption = ", ".join(text for text in captions if text) or None
