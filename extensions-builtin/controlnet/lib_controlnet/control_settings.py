"""Settings of ControlNet."""

from modules.settings.group import SettingsGroup, flag, whole
from modules.settings.setting import Section


class ControlNetSettings(SettingsGroup):
    """For all units."""

    section = Section(id="control_net", title="ControlNet", category="Extensions")

    control_net_no_detectmap = flag("Do not add control maps to the images", False)
    control_net_model_cache_size = whole(
        "Control models kept in memory", 2, minimum=0, maximum=10, hint="Between jobs. More: faster, more memory."
    )
    control_net_inpaint_blur_sigma = whole(
        "Softness of the border of inpaint_only, pixels", 7, minimum=1, maximum=64, infotext="ControlNet inpaint blur"
    )
    control_net_unit_count = whole("Units on the page", 3, minimum=1, maximum=10)
