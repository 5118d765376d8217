"""Our error replies in the shape of OpenAI's API."""

import re
from collections.abc import Mapping
from typing import Any

CODES = {"Unauthorized": "invalid_api_key", "UnknownModelError": "model_not_found"}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
WORTH_REPEATING = (429, 503)


def openai_error(status: int, content: Mapping[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return status, content and further headers of the reply that a client of OpenAI's API expects in place of ours.

    Clients repeat a request after 409 and every 5xx; the header keeps them from computing an image three times that was
    interrupted or does not fit into memory.
    """
    details = content["detail"] if isinstance(content["detail"], list) else []
    name = str(content["error"])
    status = 400 if status == 422 else status
    error = {
        "message": content["errors"],
        "type": TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": str(details[0]["loc"][-1]) if details else None,
        "code": details[0]["type"] if details else CODES.get(name, snake_case(name.removesuffix("Error"))),
    }
    return status, {"error": error}, {"x-should-retry": "true" if status in WORTH_REPEATING else "false"}


def snake_case(name: str) -> str:
    """Return `InvalidValue` as `invalid_value`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
