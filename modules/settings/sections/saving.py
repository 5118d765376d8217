"""Saving images: what is written, where to, and under which name."""

from modules.settings.group import SettingsGroup, choice, color, flag, number, text, whole
from modules.settings.setting import Section

FORMATS = ("png", "jpg", "jpeg", "webp", "avif")
PATTERN_HINT = (
    "Words in square brackets are filled in: [seed], [prompt_spaces], [model_name], [date], [datetime<%Y-%m-%d>] ..."
)


class ImageSavingSettings(SettingsGroup):
    """Which images and grids are saved, and in which format."""

    section = Section(id="saving-images", title="Saving images/grids", category="Saving images")

    samples_save = flag("Always save all generated images", True)
    samples_format = choice("File format for images", "png", FORMATS)
    samples_filename_pattern = text("Images filename pattern", "", hint=f"Empty: [seed]. {PATTERN_HINT}")
    save_images_add_number = flag("Add number to filename when saving", True)
    save_images_replace_action = choice(
        "Saving the image to an existing file",
        "Replace",
        ("Replace", "Add number suffix"),
        hint="Without the number above; with it, no name is used twice.",
    )
    grid_save = flag("Always save all generated image grids", True)
    grid_format = choice("File format for grids", "png", FORMATS)
    grid_extended_filename = flag("Add the images filename pattern to the names of grids", False)
    grid_only_if_multiple = flag("Do not save grids consisting of one image", True)
    grid_prevent_empty_spots = flag(
        "Prevent empty spots in grid",
        False,
        hint="With an automatic row count: as square as possible without gaps.",
    )
    grid_zip_filename_pattern = text(
        "Archive filename pattern", "", hint=f"Empty: [datetime], [model_name], [seed]-[seed_last]. {PATTERN_HINT}"
    )
    n_rows = whole(
        "Grid row count", -1, minimum=-1, maximum=16, step=1, hint="-1: automatic; 0: same as the batch size."
    )
    font = text("Font for image grids that have text", "", hint="A TrueType file. Empty: the built-in one.")
    grid_text_active_color = color("Text color for image grids", "#000000")
    grid_text_inactive_color = color("Inactive text color for image grids", "#999999")
    grid_background_color = color("Background color for image grids that have text", "#ffffff")
    save_images_before_face_restoration = flag("Save a copy of the image before face restoration", False)
    save_images_before_highres_fix = flag("Save a copy of the image before hires fix", False)
    save_images_before_color_correction = flag(
        "Save a copy of image before applying color correction to img2img results", False
    )
    save_mask = flag("For inpainting, save a copy of the grayscale mask", False)
    save_mask_composite = flag("For inpainting, save a masked composite", False)
    save_init_img = flag("Save init images when using img2img", False)
    jpeg_quality = whole("Quality for saved JPEG, WebP and AVIF images", 80, minimum=1, maximum=100, step=1)
    webp_lossless = flag("Use lossless compression for WebP images", False)
    export_for_4chan = flag("Save a copy of large images as JPG", True, hint="The two limits below say what is large.")
    img_downscale_threshold = number("File size limit for the above option, MB", 4.0, minimum=0)
    target_side_length = whole("Width/height limit for the above option, in pixels", 4000, minimum=1)
    img_max_size_mp = whole("Maximum grid size, in megapixels", 200, minimum=0, hint="Larger grids are not made.")
    use_original_name_batch = flag("Use original name for output filename during batch process in extras tab", True)
    use_upscaler_name_as_suffix = flag("Use upscaler name as filename suffix in the extras tab", False)
    save_selected_only = flag(
        "When using the Save button, only save the selected image",
        True,
        hint="Off: all images of the job, without grids.",
    )
    save_incomplete_images = flag(
        "Save incomplete images",
        False,
        hint="The unfinished images of an interrupted or skipped batch. They are shown in any case.",
    )
    notification_audio = flag("Play a sound after image generation", True)
    notification_volume = whole("Volume of that sound", 100, minimum=0, maximum=100, step=1)
    save_write_log_csv = flag("Write log.csv when saving images using the Save button", True)


class SavingPathSettings(SettingsGroup):
    """Where images are saved."""

    section = Section(id="saving-paths", title="Paths for saving", category="Saving images")

    outdir_samples = text("Output directory for images", "", hint="Empty: the directories below, one per tab.")
    outdir_txt2img_samples = text("Output directory for txt2img images", "outputs/txt2img-images")
    outdir_grids = text("Output directory for grids", "", hint="Empty: the directories below, one per tab.")
    outdir_txt2img_grids = text("Output directory for txt2img grids", "outputs/txt2img-grids")
    outdir_img2img_samples = text("outdir_img2img_samples", "outputs/img2img-images", hidden=True)
    outdir_extras_samples = text("Output directory for images from extras tab", "outputs/extras-images")
    outdir_img2img_grids = text("outdir_img2img_grids", "outputs/img2img-grids", hidden=True)
    outdir_init_images = text("Directory for saving init images when using img2img", "outputs/init-images")
    outdir_save = text("Output directory for the Save button", "log/images")


class SavingFolderSettings(SettingsGroup):
    """Subdirectories of those folders."""

    section = Section(id="saving-to-dirs", title="Saving to a directory", category="Saving images")

    save_to_dirs = flag("Save images to a subdirectory", True)
    grid_save_to_dirs = flag("Save grids to a subdirectory", True)
    use_save_to_dirs_for_ui = flag("Save to a subdirectory with the Save button", False)
    directories_filename_pattern = text("Directory name pattern", "[date]", hint=PATTERN_HINT)
    directories_max_prompt_words = whole(
        "Max prompt words for [prompt_words] pattern", 8, minimum=1, maximum=20, step=1
    )
