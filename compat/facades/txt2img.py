"""`modules.txt2img`: what the button of the tab calls, which is the queue here."""

from compat.facades.refusal import refusing

_BUILD = (
    "build StableDiffusionProcessingTxt2Img(prompt=..., ...) and give it to process_images, or POST /sdapi/v1/txt2img."
)
__getattr__ = refusing("txt2img", {"txt2img": _BUILD, "txt2img_create_processing": _BUILD, "txt2img_upscale": _BUILD})
