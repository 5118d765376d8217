"""Sampler parameters: how noise is removed. Most are recorded in the infotext when they differ from the default."""

from modules.settings.group import Group
from modules.settings.setting import Section

SAMPLERS = Group(Section(id="sampler-params", title="Sampler parameters", category="Stable Diffusion"))

SETTINGS = (
    SAMPLERS.many("hide_samplers", "Hide samplers in user interface", (), "samplers", needs_reload=True),
    SAMPLERS.number(
        "eta_ddim", "Eta for DDIM", 0.0, minimum=0, maximum=1, step=0.01, infotext="Eta DDIM", hint="0: no new noise."
    ),
    SAMPLERS.number(
        "eta_ancestral",
        "Eta for k-diffusion samplers",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Eta",
        hint="How much new noise the ancestral and SDE samplers add at each step.",
    ),
    *SAMPLERS.reserved({"ddim_discretize": "uniform"}),
    SAMPLERS.number("s_churn", "sigma churn", 0.0, minimum=0, maximum=100, step=0.01, infotext="Sigma churn"),
    SAMPLERS.number("s_tmin", "sigma tmin", 0.0, minimum=0, maximum=10, step=0.01, infotext="Sigma tmin"),
    SAMPLERS.number(
        "s_tmax", "sigma tmax", 0.0, minimum=0, maximum=999, step=0.01, infotext="Sigma tmax", hint="0: no limit."
    ),
    SAMPLERS.number("s_noise", "sigma noise", 1.0, minimum=0, maximum=1.1, step=0.001, infotext="Sigma noise"),
    SAMPLERS.number(
        "sigma_min", "sigma min", 0.0, minimum=0, infotext="Schedule min sigma", hint="0: the model's own."
    ),
    SAMPLERS.number(
        "sigma_max", "sigma max", 0.0, minimum=0, infotext="Schedule max sigma", hint="0: the model's own."
    ),
    SAMPLERS.number("rho", "rho", 0.0, minimum=0, infotext="Schedule rho", hint="0: the schedule's own."),
    SAMPLERS.whole(
        "eta_noise_seed_delta", "Eta noise seed delta", 0, infotext="ENSD", hint="Added to the seed of later noise."
    ),
    SAMPLERS.flag(
        "always_discard_next_to_last_sigma",
        "Always discard next-to-last sigma",
        False,
        infotext="Discard penultimate sigma",
    ),
    SAMPLERS.flag("sgm_noise_multiplier", "SGM noise multiplier", False, infotext="SGM noise multiplier"),
    SAMPLERS.choice("uni_pc_variant", "UniPC variant", "bh1", ("bh1", "bh2", "vary_coeff"), infotext="UniPC variant"),
    SAMPLERS.choice(
        "uni_pc_skip_type",
        "UniPC skip type",
        "time_uniform",
        ("time_uniform", "time_quadratic", "logSNR"),
        infotext="UniPC skip type",
    ),
    SAMPLERS.whole("uni_pc_order", "UniPC order", 3, minimum=1, maximum=50, step=1, infotext="UniPC order"),
    SAMPLERS.flag("uni_pc_lower_order_final", "UniPC lower order final", True, infotext="UniPC lower order final"),
    SAMPLERS.choice(
        "sd_noise_schedule",
        "Noise schedule for sampling",
        "Default",
        ("Default", "Zero Terminal SNR"),
        infotext="Noise Schedule",
        hint="Zero Terminal SNR is for models trained with it.",
    ),
    SAMPLERS.number(
        "skip_early_cond",
        "Ignore negative prompt during early sampling",
        0.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Skip Early CFG",
        hint="The fraction of steps, from the first, that run without it.",
    ),
    SAMPLERS.number(
        "beta_dist_alpha",
        "Beta scheduler - alpha",
        0.6,
        minimum=0.01,
        maximum=1,
        step=0.01,
        infotext="Beta schedule alpha",
        infotext_aliases=("Beta scheduler alpha",),
    ),
    SAMPLERS.number(
        "beta_dist_beta",
        "Beta scheduler - beta",
        0.6,
        minimum=0.01,
        maximum=1,
        step=0.01,
        infotext="Beta schedule beta",
        infotext_aliases=("Beta scheduler beta",),
    ),
)
