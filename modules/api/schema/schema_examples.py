"""Examples of JSON data, made from the examples that a schema and its fields carry."""

from collections.abc import Mapping
from typing import Any


def example_of(content: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """The example of an OpenAPI media type object: its own, else that of its schema; None where there is none.

    `schemas` are the components that `$ref` points to.
    """
    for holder in (content, resolved(content.get("schema", {}), schemas)):
        if "example" in holder:
            return holder["example"]
        examples = holder.get("examples")
        if examples:
            return examples[0] if isinstance(examples, list) else next(iter(examples.values()))["value"]
    return _of_schema(resolved(content.get("schema", {}), schemas), schemas)


def resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, or the one its `$ref` names."""
    reference = schema.get("$ref")
    found: Mapping[str, Any] = schemas[reference.rsplit("/", 1)[-1]] if reference else schema
    return found


def _of_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    if "properties" in schema:
        made = {name: _of_field(field, schemas) for name, field in schema["properties"].items()}
        return {name: value for name, value in made.items() if value is not None or name in schema.get("required", ())}
    if schema.get("type") == "array":
        item = example_of({"schema": schema.get("items", {})}, schemas)
        return None if item is None else [item]
    return None


def _of_field(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    if field.get("examples"):
        return field["examples"][0]
    return field["default"] if "default" in field else example_of({"schema": field}, schemas)
