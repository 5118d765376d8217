"""Keys of the reference UI without an effect here: accepted and kept, never shown.

Whoever gives one an effect moves it into the group of its section.
"""

from modules.settings.group import kept
from modules.settings.sections.extra_networks import ExtraNetworkSettings
from modules.settings.sections.interface import (
    GallerySettings,
    InfotextSettings,
    InterfaceAlternativeSettings,
    InterfaceSettings,
    PreviewSettings,
)
from modules.settings.sections.postprocessing import UpscalingSettings
from modules.settings.sections.samplers import SamplerSettings
from modules.settings.sections.saving import ImageSavingSettings
from modules.settings.sections.stable_diffusion import Img2ImgSettings, StableDiffusionSettings, VaeSettings
from modules.settings.sections.system import HiddenSettings, SystemSettings
from modules.settings.setting import Section

SETTINGS = (
    *kept(
        ImageSavingSettings.section,
        {
            "temp_dir": "",
            "clean_temp_dir_at_start": False,
        },
    ),
    *kept(
        StableDiffusionSettings.section,
        {
            "sd_checkpoint_cache": 0,
            "sd_unet": "Automatic",
        },
    ),
    *kept(
        VaeSettings.section,
        {
            "sd_vae_explanation": "",
            "sd_vae_checkpoint_cache": 0,
        },
    ),
    *kept(
        Img2ImgSettings.section,
        {},
    ),
    *kept(
        SamplerSettings.section,
        {
            "ddim_discretize": "uniform",
        },
    ),
    *kept(
        ExtraNetworkSettings.section,
        {
            "textual_inversion_print_at_load": False,
        },
    ),
    *kept(
        GallerySettings.section,
        {
            "sd_webui_modal_lightbox_toolbar_opacity": 0.9,
        },
    ),
    *kept(
        InterfaceAlternativeSettings.section,
        {
            "compact_prompt_box": False,
            "samplers_in_dropdown": True,
            "dimensions_and_batch_together": True,
            "sd_checkpoint_dropdown_use_short": False,
            "hires_fix_show_sampler": False,
            "hires_fix_show_prompts": False,
            "txt2img_settings_accordion": False,
            "img2img_settings_accordion": False,
        },
    ),
    *kept(
        InterfaceSettings.section,
        {
            "ui_reorder_list": (),
            "gradio_themes_cache": True,
            "enable_reloading_ui_scripts": False,
        },
    ),
    *kept(
        InfotextSettings.section,
        {
            "infotext_explanation": "",
        },
    ),
    *kept(
        PreviewSettings.section,
        {
            "live_preview_content": "Prompt",
            "live_preview_fast_interrupt": False,
            "js_live_preview_in_modal_lightbox": False,
        },
    ),
    *kept(
        Section(id="settings_in_ui", title="Settings in UI", category="User Interface"),
        {
            "settings_in_ui": "",
            "extra_options_txt2img": (),
            "extra_options_img2img": (),
            "extra_options_cols": 1,
            "extra_options_accordion": False,
        },
    ),
    *kept(
        SystemSettings.section,
        {
            "show_warnings": False,
            "show_gradio_deprecation_warnings": True,
            "memmon_poll_rate": 8,
            "multiple_tqdm": True,
            "enable_upscale_progressbar": True,
            "print_hypernet_extra": False,
            "hide_ldm_prints": True,
            "dump_stacks_on_signal": False,
        },
    ),
    *kept(
        Section(id="profiler", title="Profiler", category="System"),
        {
            "profiling_explanation": "",
            "profiling_enable": False,
            "profiling_activities": ("CPU",),
            "profiling_record_shapes": True,
            "profiling_profile_memory": True,
            "profiling_with_stack": True,
            "profiling_filename": "trace.json",
        },
    ),
    *kept(
        Section(id="training", title="Training", category="Training"),
        {
            "unload_models_when_training": False,
            "pin_memory": False,
            "save_optimizer_state": False,
            "save_training_settings_to_txt": True,
            "dataset_filename_word_regex": "",
            "dataset_filename_join_string": " ",
            "training_image_repeats_per_epoch": 1,
            "training_write_csv_every": 500,
            "training_xattention_optimizations": False,
            "training_enable_tensorboard": False,
            "training_tensorboard_save_images": False,
            "training_tensorboard_flush_every": 120,
        },
    ),
    *kept(
        HiddenSettings.section,
        {
            "restore_config_state_file": "",
            "sd_checkpoint_hash": "",
        },
    ),
    *kept(
        UpscalingSettings.section,
        {
            "realesrgan_enabled_models": ("R-ESRGAN 4x+", "R-ESRGAN 4x+ Anime6B"),
            "dat_enabled_models": ("DAT x2", "DAT x3", "DAT x4"),
            "set_scale_by_when_changing_upscaler": False,
            "SWIN_torch_compile": False,
            "ldsr_steps": 100,
            "ldsr_cached": False,
        },
    ),
)
