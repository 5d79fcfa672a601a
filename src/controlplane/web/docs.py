"""
The OpenAPI document as one page to read: no script, no file from elsewhere, the colours of the domain it is shown on.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from controlplane.web.brand import Brand

COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
ACCENT = "#2456c9"
DEEPEST = 16
REF = "#/components/schemas/"
STYLE = """
:root{--accent:ACCENT;--ink:#1b2230;--soft:#5b6577;--line:#e3e7ee;--back:#f7f8fa}
*{box-sizing:border-box}html{scroll-behavior:smooth}
body{margin:0;font:15px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:var(--ink)}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
nav{position:fixed;inset:0 auto 0 0;width:250px;overflow:auto;padding:24px 20px;background:var(--back);border-right:1px solid var(--line)}
nav img{max-width:160px;max-height:48px;display:block;margin-bottom:12px}nav b{display:block;margin:0 0 12px;font-size:17px}
nav a{display:block;padding:3px 0;color:var(--soft)}nav hr{border:0;border-top:1px solid var(--line);margin:12px 0}
main{margin-left:250px;padding:32px 48px 80px;max-width:1060px}
h1{font-size:30px;line-height:1.2;margin:0 0 4px}h2{font-size:21px;margin:44px 0 6px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:16px;margin:28px 0 4px}h4{font-size:12px;letter-spacing:.06em;text-transform:uppercase;color:var(--soft);margin:18px 0 6px}
p{margin:6px 0;max-width:76ch}.soft{color:var(--soft)}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}code{background:#eef1f6;border-radius:4px;padding:1px 5px}
pre{background:#101726;color:#e6ebf5;border-radius:8px;padding:14px 16px;overflow:auto;margin:6px 0;max-height:420px}
details{border:1px solid var(--line);border-radius:8px;margin:8px 0}details[open]{box-shadow:0 1px 6px #1b223014}
summary{cursor:pointer;padding:9px 14px;display:flex;gap:12px;align-items:baseline;list-style:none}
summary::-webkit-details-marker{display:none}
summary:hover{background:var(--back)}details>div{padding:2px 18px 16px;border-top:1px solid var(--line)}
.verb{font:700 11px/1 ui-monospace,Menlo,monospace;min-width:58px}
.verb{text-align:center;padding:5px 0;border-radius:4px;color:#fff;background:#4b6a9b}
.post{background:#1f7a4d}.put,.patch{background:#9a6700}.delete{background:#b3261e}
.path{font:13px ui-monospace,Menlo,monospace}.what{margin-left:auto;color:var(--soft);text-align:right}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft);font-size:12px}td:first-child{white-space:nowrap}
@media(max-width:820px){nav{position:static;width:auto;border:0;border-bottom:1px solid var(--line)}}
@media(max-width:820px){main{margin:0;padding:20px}.what{display:none}}
"""


def page(document: dict[str, Any], brand: Brand | None) -> str:
    """
    The document as HTML, complete in itself.
    """
    colour = brand.colour if brand is not None and COLOUR.fullmatch(brand.colour) else ACCENT
    title = escape(document["info"]["title"])
    body = "".join((*_navigation(document, brand), "<main>", *_introduction(document), *_sections(document), "</main>"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE.replace('ACCENT', colour)}</style></head><body>{body}</body></html>"
    )


def example_of(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """
    A value that fits the schema, made of the examples its fields give.
    """
    if depth > DEEPEST:
        return None
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].removeprefix(REF)], schemas, depth + 1)
    given = _given(schema)
    if given:
        return given[0]
    for name in ("allOf", "anyOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0], schemas, depth + 1)
    return _made(schema, schemas, depth)


def _given(schema: dict[str, Any]) -> list[Any]:
    return next(
        (list(schema[name]) for name in ("examples", "enum") if schema.get(name)),
        [schema[name] for name in ("example", "const", "default") if name in schema],
    )


def _made(schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if kind == "object":
        return {name: example_of(one, schemas, depth + 1) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [example_of(schema.get("items", {}), schemas, depth + 1)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return {"boolean": False, "null": None}.get(kind or "", "text")


def _navigation(document: dict[str, Any], brand: Brand | None) -> Iterator[str]:
    yield "<nav>"
    if brand is not None and brand.logo_url.startswith("https://"):
        yield f'<img src="{escape(brand.logo_url)}" alt="">'
    yield f"<b>{escape(document['info']['title'])}</b>"
    for heading in re.findall(r"^## (.+)$", document["info"]["description"], re.MULTILINE):
        yield f'<a href="#{_anchor(heading)}">{escape(heading)}</a>'
    yield "<hr>"
    for tag in document["tags"]:
        yield f'<a href="#{_anchor(tag["name"])}">{escape(tag["name"])}</a>'
    yield '<hr><a href="/openapi.json">openapi.json</a></nav>'


def _introduction(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f"<h1>{escape(info['title'])}</h1><p class=soft>Version {escape(info['version'])}</p>"
    for block in info["description"].split("\n\n"):
        if block.startswith("## "):
            yield f'<h3 id="{_anchor(block[3:])}">{escape(block[3:])}</h3>'
        else:
            yield f"<p>{_inline(block)}</p>"
    contact = info.get("contact")
    if contact:
        address = escape(contact["email"])
        yield f'<p class=soft>Questions: <a href="mailto:{address}">{address}</a></p>'


def _sections(document: dict[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        yield f'<h2 id="{_anchor(tag["name"])}">{escape(tag["name"])}</h2><p class=soft>{escape(tag["description"])}</p>'
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(path, method, operation, document["components"])


def _operation(path: str, method: str, operation: dict[str, Any], components: dict[str, Any]) -> Iterator[str]:
    schemas, told = components["schemas"], components["responses"]
    yield f'<details id="{escape(operation["operationId"])}"><summary><span class="verb {method}">{method.upper()}</span>'
    yield f"<span class=path>{escape(path)}</span><span class=what>{escape(operation['summary'])}</span></summary><div>"
    for block in operation.get("description", "").split("\n\n"):
        yield f"<p>{_inline(block)}</p>"
    if operation.get("x-permission"):
        yield f"<p class=soft>Needs <code>{escape(operation['x-permission'])}</code></p>"
    if operation.get("parameters"):
        yield "<h4>Parameters</h4><table>"
        for one in operation["parameters"]:
            required = ", required" if one.get("required") else ""
            yield f"<tr><td><code>{escape(one['name'])}</code></td><td class=soft>{escape(one['in'])}{required}</td>"
            yield f"<td>{_inline(one.get('description', ''))}</td></tr>"
        yield "</table>"
    body = _json_schema(operation.get("requestBody", {}))
    if body:
        yield "<h4>Body</h4>"
        yield from _fields(body, schemas)
        yield _sample(body, schemas)
    yield "<h4>Answers</h4><table>"
    for code, one in operation["responses"].items():
        response = told[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        yield f"<tr><td><code>{escape(code)}</code></td><td>{_inline(response['description'])}</td></tr>"
    yield "</table>"
    answer = next((_json_schema(one) for code, one in operation["responses"].items() if code.startswith("2")), None)
    if answer:
        yield _sample(answer, schemas)
    yield "</div></details>"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    whole = schemas[schema["$ref"].removeprefix(REF)] if "$ref" in schema else schema
    if not whole.get("properties"):
        return
    yield "<table><tr><th>Field</th><th></th><th></th></tr>"
    for name, one in whole["properties"].items():
        required = "required" if name in whole.get("required", ()) else ""
        yield f"<tr><td><code>{escape(name)}</code></td><td class=soft>{required}</td><td>{_inline(one.get('description', ''))}</td></tr>"
    yield "</table>"


def _sample(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(example_of(schema, schemas), indent=2, ensure_ascii=False))}</pre>"


def _json_schema(part: dict[str, Any]) -> dict[str, Any] | None:
    schema: dict[str, Any] | None = part.get("content", {}).get("application/json", {}).get("schema")
    return schema


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
