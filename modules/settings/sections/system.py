"""The program itself: start, console, API, profiler, training and captioning."""

from modules.settings.group import Group
from modules.settings.setting import Section

SYSTEM = Group(Section(id="system", title="System", category="System"))
PROFILER = Group(Section(id="profiler", title="Profiler", category="System"))
API = Group(Section(id="API", title="API", category="System"))
TRAINING = Group(Section(id="training", title="Training", category="Training"))
INTERROGATE = Group(Section(id="interrogate", title="Interrogate"))
HIDDEN = Group(Section(id="hidden", title="Hidden options"))

SETTINGS = (
    SYSTEM.choice(
        "auto_launch_browser",
        "Open the page in the browser on startup",
        "Local",
        ("Disable", "Local", "Remote"),
        hint="Local: only where no other machine can reach the page; Remote: always. Never without a screen.",
    ),
    SYSTEM.flag("enable_console_prompts", "Print prompts to the console when a job starts", False),
    SYSTEM.flag("samples_log_stdout", "Print the infotext of every image to the console", False),
    SYSTEM.whole(
        "queue_limit",
        "Most jobs that may wait in line",
        256,
        minimum=1,
        maximum=10000,
        hint="Further ones are refused until the line is shorter.",
    ),
    SYSTEM.flag("list_hidden_files", "Load models from hidden directories", True),
    API.flag(
        "api_enable_requests", "Allow http:// and https:// URLs for input images in API", True, api_writable=False
    ),
    API.flag(
        "api_forbid_local_requests",
        "Forbid URLs to local resources",
        True,
        api_writable=False,
        hint="Keeps a caller from reaching this machine and its network through such a URL.",
    ),
    API.text("api_useragent", "User agent for requests", "", api_writable=False),
    SYSTEM.flag(
        "disable_mmap_load_safetensors",
        "Disable memmapping for loading .safetensors files.",
        False,
        hint="Weights that the CPU uses as the file has them are pages of the file. Switch this on where files "
        "are overwritten while they are in use.",
    ),
    *SYSTEM.reserved(
        {
            "show_warnings": False,
            "show_gradio_deprecation_warnings": True,
            "memmon_poll_rate": 8,
            "multiple_tqdm": True,
            "enable_upscale_progressbar": True,
            "print_hypernet_extra": False,
            "hide_ldm_prints": True,
            "dump_stacks_on_signal": False,
        }
    ),
    *PROFILER.reserved(
        {
            "profiling_explanation": "",
            "profiling_enable": False,
            "profiling_activities": ("CPU",),
            "profiling_record_shapes": True,
            "profiling_profile_memory": True,
            "profiling_with_stack": True,
            "profiling_filename": "trace.json",
        }
    ),
    *TRAINING.reserved(
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
        }
    ),
    *INTERROGATE.reserved(
        {
            "interrogate_keep_models_in_memory": False,
            "interrogate_return_ranks": False,
            "interrogate_clip_num_beams": 1,
            "interrogate_clip_min_length": 24,
            "interrogate_clip_max_length": 48,
            "interrogate_clip_dict_limit": 1500,
            "interrogate_clip_skip_categories": (),
            "interrogate_deepbooru_score_threshold": 0.5,
            "deepbooru_sort_alpha": True,
            "deepbooru_use_spaces": True,
            "deepbooru_escape": True,
            "deepbooru_filter_tags": "",
        }
    ),
    *HIDDEN.reserved(
        {
            "disabled_extensions": (),
            "disable_all_extensions": "none",
            "restore_config_state_file": "",
            "sd_checkpoint_hash": "",
        }
    ),
)
