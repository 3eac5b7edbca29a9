"""The OpenAPI description of a server, and a page that shows it."""

import html
import json
from typing import Any

from jfluid import installation
from jfluid.serving.models import Models
from jfluid.serving.requests import NPZ, Input
from jfluid.serving.service import ModelService

_ERROR = {
    "description": "what is wrong with the request",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def description(models: Models) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of all models of a server."""
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": {"description": "OK"}}}}
        for path, summary in (
            ("/", "Inputs and outputs of the first model"),
            ("/models", "Names and versions of all models"),
            ("/health", "200 as long as the server answers"),
            ("/metrics", "Figures for Prometheus"),
            ("/v2", "Name, version and extensions of the server (Open Inference Protocol)"),
            ("/v2/health/live", "200 as long as the server answers"),
            ("/v2/health/ready", "200 as long as all models answer"),
        )
    }
    for name in models.names:
        service = models.find(name)
        predict = {"post": _operation(f"Outputs of {name}", _inputs(service), _outputs(service), npz=True)}
        infer = {
            "post": _operation(f"Outputs of {name} (Open Inference Protocol)", _tensors("inputs"), _tensors("outputs"))
        }
        if name == models.default:
            paths["/predict"] = predict
        paths[f"/models/{name}/predict"] = predict
        paths[f"/v2/models/{name}/infer"] = infer
        for version in models.versions(name):
            paths[f"/models/{name}/versions/{version}/predict"] = predict
            paths[f"/v2/models/{name}/versions/{version}/infer"] = infer
    return {
        "openapi": "3.1.0",
        "info": {"title": "jfluid serve", "version": installation.VERSION},
        "paths": paths,
        "components": {"schemas": {"Error": _object({"error": {"type": "string"}})}},
    }


def page(models: Models) -> str:
    """Return an HTML page of the description, which needs no network."""
    found = description(models)
    parts = ["<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"]
    parts.append("<title>jfluid serve</title><style>body{font:16px sans-serif;max-width:50em;margin:1em auto;")
    parts.append("padding:0 1em}pre{overflow:auto;background:#8882;padding:.6em}:root{color-scheme:light dark}")
    parts.append("</style><h1>jfluid serve</h1><p><a href='openapi.json'>openapi.json</a></p>")
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(operation['summary'])}</p>")
            if body is not None:
                parts.append(f"<pre>{html.escape(json.dumps(body, indent=1))}</pre>")
    return "".join(parts)


def _object(properties: dict[str, Any], required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": list(properties)} if required else {})


def _operation(summary: str, body: dict[str, Any], answer: dict[str, Any], npz: bool = False) -> dict[str, Any]:
    kinds = ["application/json"] + [NPZ] * npz

    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {kind: {"schema": schema if kind != NPZ else {"type": "string", "format": "binary"}} for kind in kinds}

    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content(body)},
        "responses": {
            "200": {"description": "the outputs", "content": content(answer)},
            **dict.fromkeys(("400", "408", "413", "503"), _ERROR),
        },
    }


def _lists(item: Input) -> dict[str, Any]:
    """Return the schema of an input's nested lists."""
    sizes = [*item.shape[:1], *[-1] * item.levels, *item.shape[1:]]
    if item.levels and item.shape[1:] == (1,):
        sizes = sizes[:-1]
    number: dict[str, Any] = {"type": "integer" if item.whole else "number"}
    if item.height is not None:
        number |= {"minimum": 0, "maximum": item.height - 1}
    for size in reversed(sizes):
        number = {"type": "array", "items": number} | ({"minItems": size, "maxItems": size} if size >= 0 else {})
    return number


def _inputs(service: ModelService) -> dict[str, Any]:
    return _object({"inputs": _object({item.name: _lists(item) for item in service.inputs})})


def _outputs(service: ModelService) -> dict[str, Any]:
    return _object({"outputs": _object({v.name: {"type": "array"} for v in service.model.fetches})})


def _tensors(kind: str) -> dict[str, Any]:
    """Return the schema of the protocol's inputs or outputs."""
    tensor = {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string"},
        "data": {"type": "array"},
    }
    return _object({kind: {"type": "array", "items": _object(tensor)}})
