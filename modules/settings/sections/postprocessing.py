"""Upscaling and what happens to a finished image."""

from modules.settings.group import Group
from modules.settings.setting import Section

UPSCALING = Group(Section(id="upscaling", title="Upscaling", category="Postprocessing"))
FACES = Group(Section(id="face-restoration", title="Face restoration", category="Postprocessing"))
POSTPROCESSING = Group(Section(id="postprocessing", title="Postprocessing", category="Postprocessing"))

SETTINGS = (
    UPSCALING.whole(
        "ESRGAN_tile",
        "Tile size for ESRGAN upscalers",
        192,
        minimum=0,
        maximum=512,
        step=16,
        hint="0: no tiling, which needs the most memory.",
    ),
    UPSCALING.whole(
        "ESRGAN_tile_overlap",
        "Tile overlap for ESRGAN upscalers",
        8,
        minimum=0,
        maximum=48,
        step=1,
        hint="Low values may show seams.",
    ),
    UPSCALING.whole("DAT_tile", "Tile size for DAT upscalers", 192, minimum=0, maximum=512, step=16),
    UPSCALING.whole("DAT_tile_overlap", "Tile overlap for DAT upscalers", 8, minimum=0, maximum=48, step=1),
    UPSCALING.whole("SCUNET_tile", "Tile size for ScuNET upscalers", 256, minimum=0, maximum=512, step=16),
    UPSCALING.whole("SCUNET_tile_overlap", "Tile overlap for ScuNET upscalers", 8, minimum=0, maximum=64, step=1),
    UPSCALING.whole("SWIN_tile", "Tile size for SwinIR upscalers", 192, minimum=16, maximum=512, step=16),
    UPSCALING.whole("SWIN_tile_overlap", "Tile overlap for SwinIR upscalers", 8, minimum=0, maximum=48, step=1),
    *UPSCALING.reserved(
        {
            "realesrgan_enabled_models": ("R-ESRGAN 4x+", "R-ESRGAN 4x+ Anime6B"),
            "dat_enabled_models": ("DAT x2", "DAT x3", "DAT x4"),
            "upscaler_for_img2img": None,
            "set_scale_by_when_changing_upscaler": False,
            "SWIN_torch_compile": False,
            "ldsr_steps": 100,
            "ldsr_cached": False,
        }
    ),
    FACES.flag("face_restoration", "Restore faces", False, infotext="Face restoration", hidden=True),
    *FACES.reserved({"face_restoration_model": "CodeFormer"}),
    *FACES.reserved({"code_former_weight": 0.5}),
    *FACES.reserved({"face_restoration_unload": False}),
    *POSTPROCESSING.reserved(
        {
            "postprocessing_enable_in_main_ui": (),
            "postprocessing_disable_in_extras": (),
            "postprocessing_operation_order": (),
            "upscaling_max_images_in_cache": 5,
            "postprocessing_existing_caption_action": "Ignore",
        }
    ),
)
