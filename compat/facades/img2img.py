"""`modules.img2img`: what the button of the tab calls, which is the queue here."""

from compat.facades.refusal import refusing

_BUILD = "build StableDiffusionProcessingImg2Img(init_images=[...]) for process_images, or POST /sdapi/v1/img2img."
__getattr__ = refusing("img2img", {"img2img": _BUILD, "process_batch": _BUILD})
