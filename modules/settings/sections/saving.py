"""Saving images: what is written, where to, and under which name."""

from modules.settings.group import Group
from modules.settings.setting import Section

IMAGES = Group(Section(id="saving-images", title="Saving images/grids", category="Saving images"))
PATHS = Group(Section(id="saving-paths", title="Paths for saving", category="Saving images"))
FOLDERS = Group(Section(id="saving-to-dirs", title="Saving to a directory", category="Saving images"))

FORMATS = ("png", "jpg", "jpeg", "webp", "avif")
PATTERN_HINT = (
    "Words in square brackets are filled in: [seed], [prompt_spaces], [model_name], [date], [datetime<%Y-%m-%d>] ..."
)

SETTINGS = (
    IMAGES.flag("samples_save", "Always save all generated images", True),
    IMAGES.choice("samples_format", "File format for images", "png", FORMATS),
    IMAGES.text("samples_filename_pattern", "Images filename pattern", "", hint=f"Empty: [seed]. {PATTERN_HINT}"),
    IMAGES.flag("save_images_add_number", "Add number to filename when saving", True),
    IMAGES.choice(
        "save_images_replace_action",
        "Saving the image to an existing file",
        "Replace",
        ("Replace", "Add number suffix"),
        hint="Only without the number above; with it no name is ever used twice.",
    ),
    IMAGES.flag("grid_save", "Always save all generated image grids", True),
    IMAGES.choice("grid_format", "File format for grids", "png", FORMATS),
    IMAGES.flag("grid_extended_filename", "Add the images filename pattern to the names of grids", False),
    IMAGES.flag("grid_only_if_multiple", "Do not save grids consisting of one image", True),
    IMAGES.flag(
        "grid_prevent_empty_spots",
        "Prevent empty spots in grid",
        False,
        hint="Where the row count is on automatic: as square as possible without a gap.",
    ),
    IMAGES.whole(
        "n_rows", "Grid row count", -1, minimum=-1, maximum=16, step=1, hint="-1: automatic; 0: same as the batch size."
    ),
    IMAGES.text("font", "Font for image grids that have text", "", hint="A TrueType file. Empty: the built-in one."),
    IMAGES.color("grid_text_active_color", "Text color for image grids", "#000000"),
    IMAGES.color("grid_background_color", "Background color for image grids that have text", "#ffffff"),
    IMAGES.flag("save_images_before_highres_fix", "Save a copy of the image before hires fix", False),
    IMAGES.whole("jpeg_quality", "Quality for saved JPEG, WebP and AVIF images", 80, minimum=1, maximum=100, step=1),
    IMAGES.flag("webp_lossless", "Use lossless compression for WebP images", False),
    IMAGES.flag(
        "export_for_4chan", "Save a copy of large images as JPG", True, hint="The two limits below say what is large."
    ),
    IMAGES.number("img_downscale_threshold", "File size limit for the above option, MB", 4.0, minimum=0),
    IMAGES.whole("target_side_length", "Width/height limit for the above option, in pixels", 4000, minimum=1),
    IMAGES.whole(
        "img_max_size_mp", "Maximum grid size, in megapixels", 200, minimum=0, hint="Larger grids are not made."
    ),
    IMAGES.flag(
        "save_selected_only",
        "When using the Save button, only save the selected image",
        True,
        hint="Off: all images of the job, without grids.",
    ),
    IMAGES.flag(
        "save_incomplete_images",
        "Save incomplete images",
        False,
        hint="Of an interrupted or skipped batch, as far as they were. They are shown in any case.",
    ),
    IMAGES.flag("notification_audio", "Play a sound after image generation", True),
    IMAGES.whole("notification_volume", "Volume of that sound", 100, minimum=0, maximum=100, step=1),
    IMAGES.flag("save_write_log_csv", "Write log.csv when saving images using the Save button", True),
    PATHS.text("outdir_samples", "Output directory for images", "", hint="Empty: the directories below, one per tab."),
    PATHS.text("outdir_txt2img_samples", "Output directory for txt2img images", "outputs/txt2img-images"),
    PATHS.text("outdir_grids", "Output directory for grids", "", hint="Empty: the directories below, one per tab."),
    PATHS.text("outdir_txt2img_grids", "Output directory for txt2img grids", "outputs/txt2img-grids"),
    PATHS.text("outdir_save", "Output directory for the Save button", "log/images"),
    FOLDERS.flag("save_to_dirs", "Save images to a subdirectory", True),
    FOLDERS.flag("grid_save_to_dirs", "Save grids to a subdirectory", True),
    FOLDERS.flag("use_save_to_dirs_for_ui", "Save to a subdirectory with the Save button", False),
    FOLDERS.text("directories_filename_pattern", "Directory name pattern", "[date]", hint=PATTERN_HINT),
    FOLDERS.whole(
        "directories_max_prompt_words", "Max prompt words for [prompt_words] pattern", 8, minimum=1, maximum=20, step=1
    ),
    *IMAGES.reserved(
        {
            "grid_zip_filename_pattern": "",
            "grid_text_inactive_color": "#999999",
            "save_images_before_face_restoration": False,
            "save_images_before_color_correction": False,
            "save_mask": False,
            "save_mask_composite": False,
            "use_original_name_batch": True,
            "use_upscaler_name_as_suffix": False,
            "save_init_img": False,
            "temp_dir": "",
            "clean_temp_dir_at_start": False,
        }
    ),
    *PATHS.reserved(
        {
            "outdir_img2img_samples": "outputs/img2img-images",
            "outdir_extras_samples": "outputs/extras-images",
            "outdir_img2img_grids": "outputs/img2img-grids",
            "outdir_init_images": "outputs/init-images",
        }
    ),
)
