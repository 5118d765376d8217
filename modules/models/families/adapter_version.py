"""How files of adapters and model cards name the models of a family. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AdapterVersion:
    """What model cards call the models of a family ("sd version"), and the metadata by which an adapter's file says
    that it is for one: the beginning of kohya's `ss_base_model_version`, a part of `modelspec.architecture`, and in
    files without these the value of kohya's `ss_v2`."""

    name: str
    base: str
    architecture: str
    v2: str | None = None
