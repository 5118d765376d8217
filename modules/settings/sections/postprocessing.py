"""Upscaling and what happens to a finished image."""

from modules.settings.group import SettingsGroup, choice, flag, many, number, whole
from modules.settings.setting import Section


class UpscalingSettings(SettingsGroup):
    """Tiles of the upscalers, and which one img2img uses."""

    section = Section(id="upscaling", title="Upscaling", category="Postprocessing")

    ESRGAN_tile = whole(
        "Tile size for ESRGAN upscalers",
        192,
        minimum=0,
        maximum=512,
        step=16,
        hint="0: no tiling, which needs the most memory.",
        affects_image=True,
    )
    ESRGAN_tile_overlap = whole(
        "Tile overlap for ESRGAN upscalers",
        8,
        minimum=0,
        maximum=48,
        step=1,
        hint="Low values may show seams.",
        affects_image=True,
    )
    DAT_tile = whole("Tile size for DAT upscalers", 192, minimum=0, maximum=512, step=16, affects_image=True)
    DAT_tile_overlap = whole("Tile overlap for DAT upscalers", 8, minimum=0, maximum=48, step=1, affects_image=True)
    SCUNET_tile = whole("Tile size for ScuNET upscalers", 256, minimum=0, maximum=512, step=16, affects_image=True)
    SCUNET_tile_overlap = whole(
        "Tile overlap for ScuNET upscalers", 8, minimum=0, maximum=64, step=1, affects_image=True
    )
    SWIN_tile = whole("Tile size for SwinIR upscalers", 192, minimum=16, maximum=512, step=16, affects_image=True)
    upscaler_for_img2img = choice(
        "Upscaler for img2img",
        None,
        "upscalers",
        optional=True,
        hint="Enlarges images to start from, where they are smaller than what is made. None: Lanczos.",
        affects_image=True,
    )
    SWIN_tile_overlap = whole("Tile overlap for SwinIR upscalers", 8, minimum=0, maximum=48, step=1, affects_image=True)


class FaceRestorationSettings(SettingsGroup):
    """Faces."""

    section = Section(id="face-restoration", title="Face restoration", category="Postprocessing")

    face_restoration = flag(
        "Restore faces",
        False,
        hint="Of every image that txt2img and img2img make, with the model below. The API's restore_faces goes first.",
        affects_image=True,
    )
    face_restoration_model = choice(
        "Face restoration model", "CodeFormer", ("CodeFormer", "GFPGAN", "RestoreFormer"), affects_image=True
    )
    code_former_weight = number(
        "CodeFormer weight",
        0.5,
        minimum=0,
        maximum=1,
        step=0.01,
        hint="0: the most restored; 1: the closest.",
        affects_image=True,
    )
    face_restoration_unload = flag("Move face restoration model from VRAM into RAM after processing", False)


class PostprocessingSettings(SettingsGroup):
    """Operations on finished images."""

    section = Section(id="postprocessing", title="Postprocessing", category="Postprocessing")

    postprocessing_disable_in_extras = many(
        "Disable postprocessing operations in extras tab", (), "postprocessing", needs_reload=True
    )
    postprocessing_enable_in_main_ui = many(
        "Enable postprocessing operations in txt2img and img2img tabs",
        (),
        "postprocessing",
        needs_reload=True,
        hint="They appear among the scripts below the form, and run on each image before it is saved.",
    )
    postprocessing_operation_order = many(
        "Postprocessing operation order",
        (),
        "postprocessing",
        needs_reload=True,
        hint="Named operations come first, in this order; the others follow.",
    )
    upscaling_max_images_in_cache = whole(
        "Maximum number of images in upscaling cache",
        5,
        minimum=0,
        maximum=10,
        step=1,
        hint="Upscaled images that are kept in memory, so that changing the visibility of the second one is quick.",
    )
    postprocessing_existing_caption_action = choice(
        "Action for existing captions",
        "Ignore",
        ("Ignore", "Keep", "Prepend", "Append"),
        hint="When generating captions in batches: Ignore overwrites a text next to the input, Keep takes "
        "it instead, Prepend and Append put it before or after the new one.",
    )
