"""The page at /docs: the OpenAPI description for people, with a form to try each route; it loads nothing."""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from modules.api.schema.schema_examples import resolved

ASSETS = Path(__file__).parents[1] / "assets"
METHODS = ("get", "post", "put", "patch", "delete")


def add_docs_page(app: FastAPI) -> None:
    """Serve the page at /docs, and at /redoc where some look for it."""

    @app.get("/docs", include_in_schema=False)
    @app.get("/redoc", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_html(app.openapi()))


def docs_html(description: dict[str, Any]) -> str:
    """The whole page for an OpenAPI description."""
    info = description["info"]
    style, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("docs.css", "docs.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{style}</style></head><body>"
        f"<h1>{escape(info['title'])} API</h1>"
        f'<p class="soft">Version {escape(info["version"])} · <a href="openapi.json">openapi.json</a> · '
        '<a href="./">the page</a></p>'
        f"<p>{escape(info.get('description', ''))}</p>{''.join(_groups(description))}"
        f"<script>{script}</script></body></html>"
    )


def _groups(description: dict[str, Any]) -> Iterator[str]:
    texts = {tag["name"]: tag["description"] for tag in description.get("tags", [])}
    groups: dict[str, list[str]] = {name: [] for name in texts}
    for path, operations in description["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                tag = next(iter(operation.get("tags", [])), "more")
                groups.setdefault(tag, []).append(_route(method, path, operation, description))
    for name, routes in groups.items():
        if routes:
            yield f"<section><h2>{escape(name)}</h2><p>{escape(texts.get(name, ''))}</p>{''.join(routes)}</section>"


def _route(method: str, path: str, operation: dict[str, Any], description: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    if parameters := operation.get("parameters"):
        rows = "".join(_parameter(parameter) for parameter in parameters)
        parts.append(f"<h3>Parameters</h3><table>{rows}</table>")
    if fields := _fields(content, description["components"]["schemas"]):
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in fields)
        parts.append(f"<h3>Fields of the body</h3><table>{rows}</table>")
    if "example" in content:
        body = json.dumps(content["example"], indent=2, ensure_ascii=False)
        label = f"Body of {method} {path}"
        rows_shown = min(body.count("\n") + 2, 16)
        parts.append(
            f'<h3>Body</h3><textarea rows="{rows_shown}" aria-label="{escape(label)}">{escape(body)}</textarea>'
        )
    parts.append('<button type="submit">Send</button> <output class="soft"></output>')
    for status, reply in operation["responses"].items():
        parts.append(_reply(status, reply))
    form = f'<form data-method="{method.upper()}" data-path="{escape(path.removeprefix("/"))}">{"".join(parts)}</form>'
    summary = escape(operation.get("summary", ""))
    return (
        f'<details><summary><span class="method">{method.upper()}</span> <code>{escape(path)}</code> '
        f'<span class="soft">{summary}</span></summary>{form}</details>'
    )


def _parameter(parameter: dict[str, Any]) -> str:
    name = escape(parameter["name"])
    type_ = escape(_type(parameter.get("schema", {})))
    needed = ", needed" if parameter.get("required") else ""
    return f'<tr><td>{name}</td><td>{type_}{needed} <input name="{name}" aria-label="{name}"></td></tr>'


def _reply(status: str, reply: dict[str, Any]) -> str:
    content: dict[str, Any] = next(iter(reply.get("content", {}).values()), {})
    if int(status) >= 400:
        return f'<p class="error">{status}: {escape(reply["description"])}</p>'
    shown = json.dumps(content.get("example"), indent=2, ensure_ascii=False)
    return f"<h3>Reply {status}</h3><pre>{escape(shown)}</pre>"


def _fields(content: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, str]]:
    schema = resolved(content.get("schema", {}), schemas)
    needed = schema.get("required", [])
    return [
        (name, _type(field) + (", needed" if name in needed else f" = {json.dumps(field.get('default'))}"))
        for name, field in schema.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    types = [
        f"list of {_type(o.get('items', {}))}" if o.get("type") == "array" else o.get("type", "any") for o in options
    ]
    return " or ".join(types)
