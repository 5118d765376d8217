"""How routes are described in OpenAPI: a summary, an example of the reply, and the errors a caller may meet."""

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from modules.api.schema.schema_examples import example_of

DESCRIPTION = (
    "Names of routes and fields are those that clients of Stable Diffusion web UIs know. Every error is a JSON object "
    "with a sentence in `errors` that says what is wrong and what to do."
)
TAGS = {
    "generation": "Make images, read how they were made, stop.",
    "progress": "Where a job stands.",
    "options": "Settings and command line.",
    "lists": "What there is to choose from.",
    "server": "Memory, the loaded model, stopping.",
    "queue": "What runs, waits and has ended: its order, pausing, repeating.",
    "history": "Finished images: searching, marking, deleting, importing, comparing.",
    "agent scheduler": "The same queue by the routes of the Agent Scheduler extension.",
    "tasks": "Long work next to the images: how far it is, and stopping it.",
    "models": "The model files on disk: kind, size, use, doubles, missing parts; moving and deleting.",
    "downloads": "Getting models: what there is, what a file will need here, downloading it.",
    "page": "What the page itself asks; may change between versions.",
}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "detail", "body", "errors"],
    "properties": {
        "error": {"type": "string", "description": "The type of error."},
        "detail": {"description": "The sentence, or where a body has several faults the list of them."},
        "body": {"type": "string"},
        "errors": {"type": "string", "description": "One sentence: what is wrong and what to do."},
    },
}
ERROR_NAMES = {401: "Unauthorized", 403: "HTTPException", 404: "UnknownNameError", 422: "InvalidValueError"}
COMMON_ERRORS = {
    401: "This API needs a user and password (HTTP Basic, see --api-auth and --gradio-auth).",
    500: "Internal error: ValueError: ... The log says more.",
}
NULL = "\0null"
"""Stands for null in examples while FastAPI handles them, because it drops what is null."""
UNREADABLE = "The request cannot be used: steps: Input should be a valid integer."


def documented(reply: Any = None, errors: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Keyword arguments for a route's decorator: the example of its JSON reply, and a sentence for each error status.

    The route's docstring gives the rest: its first sentence is the summary, where the decorator has none. 401, 422 for
    a body or parameter that cannot be read, and 500 are added to every route. A route whose reply is a model with
    examples at its fields needs none here.
    """
    example = _swapped(reply, None, NULL)
    return {"responses": {200: _json("Done.", example), **_error_replies(errors or {})}}


def documented_image(subtype: str, errors: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return what FastAPI documents for a route that answers with an image of this type, such as png."""
    reply = {"description": "The image.", "content": {f"image/{subtype}": {"example": f"({subtype.upper()})"}}}
    return {"responses": {200: reply, **_error_replies(errors or {})}}


class DescribedApi(FastAPI):
    """An app whose OpenAPI description has summaries from docstrings, our error replies and the users' scheme."""

    def openapi(self) -> dict[str, Any]:
        """The description; built once, when it is first asked for."""
        if self.openapi_schema is None:
            found = super().openapi()
            components = found.setdefault("components", {})
            components.setdefault("schemas", {})["ErrorReply"] = ERROR_SCHEMA
            for unused in ("HTTPValidationError", "ValidationError"):
                components["schemas"].pop(unused, None)
            components["securitySchemes"] = {"basic": {"type": "http", "scheme": "basic"}}
            for path in found["paths"].values():
                for operation in path.values():
                    _complete(operation, components["schemas"])
            self.openapi_schema = found
        return self.openapi_schema


def _complete(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Fill in what every route has in common, and the examples that follow from schemas."""
    _summarise(operation)
    replies = operation["responses"]
    for status, reply in replies.items():
        if int(status) >= 400:
            text = reply["description"]
            replies[status] = _error_reply(int(status), UNREADABLE if text == "Validation Error" else text)
        else:
            _show(reply.get("content", {}), schemas)
    for number, sentence in COMMON_ERRORS.items():
        replies.setdefault(str(number), _error_reply(number, sentence))
    operation["responses"] = dict(sorted(replies.items()))
    _show(operation.get("requestBody", {}).get("content", {}), schemas)
    operation["security"] = [{}, {"basic": []}]  # without users any header is fine


def _summarise(operation: dict[str, Any]) -> None:
    """The docstring's first sentence instead of the summary that FastAPI makes of a function's name."""
    made_of_name = re.sub(r"\W", "_", operation["summary"]).lower()
    text = " ".join(operation.get("description", "").split())
    if text and operation["operationId"].lower().startswith(f"{made_of_name}_"):
        operation["summary"] = text.split(". ")[0].rstrip(".")


def _show(contents: dict[str, Any], schemas: dict[str, Any]) -> None:
    for content in contents.values():
        example = example_of(content, schemas)
        if "example" in content or example is not None:
            content["example"] = _swapped(example, NULL, None)


def _error_replies(sentences: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    return {status: _error_reply(status, sentence) for status, sentence in sentences.items()}


def _error_reply(status: int, sentence: str) -> dict[str, Any]:
    name = ERROR_NAMES.get(status, "HTTPException" if status != 500 else "ValueError")
    example = {"error": name, "detail": sentence, "body": "", "errors": sentence}
    reply = _json(sentence, example)
    reply["content"]["application/json"]["schema"] = {"$ref": "#/components/schemas/ErrorReply"}
    return reply


def _json(description: str, example: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"example": example}}}


def _swapped(value: Any, old: Any, new: Any) -> Any:
    """A copy of JSON data with every leaf that equals `old` replaced."""
    if isinstance(value, dict):
        return {key: _swapped(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_swapped(item, old, new) for item in value]
    return new if value == old else value
