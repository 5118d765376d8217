"""Sampler parameters: how noise is removed. Most are recorded in the infotext when they differ from the default."""

from modules.settings.group import SettingsGroup, choice, flag, many, number, whole
from modules.settings.setting import Section


class SamplerSettings(SettingsGroup):
    """Sampler parameters."""

    section = Section(id="sampler-params", title="Sampler parameters", category="Stable Diffusion")

    hide_samplers = many("Hide samplers in user interface", (), "samplers", needs_reload=True)
    eta_ddim = number(
        "Eta for DDIM", 0.0, minimum=0, maximum=1, step=0.01, infotext="Eta DDIM", hint="0: no new noise."
    )
    eta_ancestral = number(
        "Eta for k-diffusion samplers",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Eta",
        hint="How much new noise the ancestral and SDE samplers add at each step.",
    )
    s_churn = number("sigma churn", 0.0, minimum=0, maximum=100, step=0.01, infotext="Sigma churn")
    s_tmin = number("sigma tmin", 0.0, minimum=0, maximum=10, step=0.01, infotext="Sigma tmin")
    s_tmax = number("sigma tmax", 0.0, minimum=0, maximum=999, step=0.01, infotext="Sigma tmax", hint="0: no limit.")
    s_noise = number("sigma noise", 1.0, minimum=0, maximum=1.1, step=0.001, infotext="Sigma noise")
    sigma_min = number("sigma min", 0.0, minimum=0, infotext="Schedule min sigma", hint="0: the model's own.")
    sigma_max = number("sigma max", 0.0, minimum=0, infotext="Schedule max sigma", hint="0: the model's own.")
    rho = number("rho", 0.0, minimum=0, infotext="Schedule rho", hint="0: the schedule's own.")
    eta_noise_seed_delta = whole("Eta noise seed delta", 0, infotext="ENSD", hint="Added to the seed of later noise.")
    always_discard_next_to_last_sigma = flag(
        "Always discard next-to-last sigma", False, infotext="Discard penultimate sigma"
    )
    sgm_noise_multiplier = flag("SGM noise multiplier", False, infotext="SGM noise multiplier")
    uni_pc_variant = choice("UniPC variant", "bh1", ("bh1", "bh2", "vary_coeff"), infotext="UniPC variant")
    uni_pc_skip_type = choice(
        "UniPC skip type", "time_uniform", ("time_uniform", "time_quadratic", "logSNR"), infotext="UniPC skip type"
    )
    uni_pc_order = whole("UniPC order", 3, minimum=1, maximum=50, step=1, infotext="UniPC order")
    uni_pc_lower_order_final = flag("UniPC lower order final", True, infotext="UniPC lower order final")
    sd_noise_schedule = choice(
        "Noise schedule for sampling",
        "Default",
        ("Default", "Zero Terminal SNR"),
        infotext="Noise Schedule",
        hint="Zero Terminal SNR is for models trained with it.",
    )
    skip_early_cond = number(
        "Ignore negative prompt during early sampling",
        0.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Skip Early CFG",
        hint="The fraction of steps, from the first, that run without it.",
    )
    beta_dist_alpha = number(
        "Beta scheduler - alpha",
        0.6,
        minimum=0.01,
        maximum=1,
        step=0.01,
        infotext="Beta schedule alpha",
        infotext_aliases=("Beta scheduler alpha",),
    )
    beta_dist_beta = number(
        "Beta scheduler - beta",
        0.6,
        minimum=0.01,
        maximum=1,
        step=0.01,
        infotext="Beta schedule beta",
        infotext_aliases=("Beta scheduler beta",),
    )
