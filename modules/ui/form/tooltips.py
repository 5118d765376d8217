"""Tooltips of a control where the pointer rests on it, or the focus is, by the id of its element."""

from modules.ui.form.form import ROWS, TAB_NAMES

OF_TABS = {
    "{tab}_generate": "Make images with this form (Ctrl+Enter). Right-click: generate until stopped.",
    "{tab}_enqueue": "Add this form to the queue (Ctrl+Shift+Enter).",
    "{tab}_interrupt": "Stop (Esc). In a batch, the first press finishes the current image.",
    "{tab}_skip": "Leave out the rest of this image and go on with the next (Alt+Enter).",
    "{tab}_clear_prompt": "Empty both prompts.",
    "{tab}_override_settings": "Settings of the pasted image, for this form only.",
    "{tab}_script_list": "Scripts run the form in other ways: grids over values, many prompts, larger images in tiles.",
    "{tab}_seed_extras": "Slightly different images of one seed.",
    "{tab}_refiner": "A second model for the last steps.",
    "{tab}_styles_edit": "See, change and delete saved styles.",
    "{tab}_styles_edit_name": "Choose a style, or type the name of a new one.",
}
OTHERS = {
    "setting_sd_model_checkpoint": "The model that makes the images. It is loaded before the next image.",
    "setting_fp8_storage": "Keeps the weights in 8 bits: about half the memory, nearly the same images.",
    "txt2img_enable_hr": "Make the image a second time, larger and with more detail.",
    "txt2img_hr": "A second, larger pass: more detail, more memory and time.",
    "interrogate": "Write a prompt that describes the image.",
    "describe": "Write a prompt with the text encoder of the checkpoint (Qwen-Image, Krea 2).",
    "deepbooru": "Write tags that describe the image, as models for drawings know them.",
    "img2img_mask_alpha": "How transparent the mask is. 0: the masked part changes fully; higher: less.",
    "img2img_scale": "How many times larger or smaller the result is.",
    "img2img_outpaint": "Make the image larger on its sides.",
    "img2img_batch_input_dir": "The folder with the images to begin with.",
    "img2img_batch_output_dir": "The folder for the results.",
    "img2img_batch_inpaint_mask_dir": "The folder with the masks.",
    "img2img_batch_use_png_info": "Add the prompts that each image records to those of the form.",
    "img2img_batch_png_info_dir": "The folder of the images whose parameters are used.",
    "img2img_batch_png_info_props": "Which of its parameters replace the form's.",
    "extras_generate": "Run the chosen operations over the image, or over all images.",
    "extras_interrupt": "Stop; what is finished stays.",
    "extras_image": "The image to work on: drop it, paste it, or click.",
    "extras_image_batch": "The images to work on.",
    "extras_batch_input_dir": "The folder with the images to work on.",
    "extras_batch_output_dir": "The folder for the results.",
    "extras_show_extras_results": "Off: results of a folder are saved, and not shown.",
    "extras_upscale": "Enlarge images.",
    "extras_upscaler_1": "What enlarges the image. Neural upscalers add detail; Lanczos and Nearest do not.",
    "extras_upscaler_2": "A second upscaler whose result is mixed in.",
    "extras_upscaler_2_visibility": "How much of the second result is seen. 0: none of it; 1: only it.",
    "extras_upscaling_resize": "How many times larger the result is. Larger: more memory and time.",
    "extras_upscale_max_side_length": "The longest side that the result may have, in pixels.",
    "extras_upscaling_resize_w": "The width of the result.",
    "extras_upscaling_resize_h": "The height of the result.",
    "extras_upscaling_crop": "Cut off what is outside of this shape; otherwise the sides get borders.",
    "extras_gfpgan": "Restore faces.",
    "extras_gfpgan_visibility": "How much of the restored face is seen. 0: the image as it was; 1: only that face.",
    "extras_codeformer": "Restore faces, with a choice between clean and similar.",
    "extras_codeformer_visibility": "How much of the restored face is seen. 0: the image as it was; 1: only that face.",
    "extras_codeformer_weight": "Smaller: cleaner faces; larger: closer to the image.",
    "pnginfo_image": "An image that was made here or elsewhere: its parameters are shown.",
}


def tooltips() -> dict[str, str]:
    """Every text by the id of its element."""
    found = dict(OTHERS)
    for tab, name in TAB_NAMES.items():
        found |= {elem_id.format(tab=name): text for elem_id, text in OF_TABS.items()}
        rows = (row for row in ROWS.values() if tab in row.tabs and row.control and row.control.help)
        found |= {row.elem_id(name): row.control.help for row in rows if row.control}
    return found
