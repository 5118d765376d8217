"""`modules.postprocessing`: the Extras tab."""

from compat.facades.refusal import refusing

_ROUTE = "POST /sdapi/v1/extra-single-image runs the operations of the Extras tab."
__getattr__ = refusing(
    "postprocessing", dict.fromkeys(("run_extras", "run_postprocessing", "run_postprocessing_webui"), _ROUTE)
)
