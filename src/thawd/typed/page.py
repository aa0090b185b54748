"""Makes the page on which a person tries a typed function: a form, and the answer below it.

The page needs no other file and no other server.
"""

import html
import json
from typing import Any, Dict, List

from thawd.typed.answers import simple
from thawd.typed.kinds import ARRAY, BINARY, IMAGE, JSON, SCALAR, plain
from thawd.typed.parameters import Parameter, Parameters
from thawd.typed.schemas import Schemas

_EXAMPLES: Dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_DEEPEST = 6

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
label {{ display: block; margin: 1rem 0 .25rem; font-weight: 600; }}
small {{ font-weight: 400; opacity: .7; }}
input[type=text], textarea {{ width: 100%; box-sizing: border-box; padding: .5rem; font: 14px/1.5 monospace; }}
textarea {{ min-height: 7rem; }}
button {{ margin: 1rem 0; padding: .5rem 1.5rem; font: inherit; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; padding: .75rem; border: 1px solid #8885; min-height: 1.5rem; }}
img {{ max-width: 100%; }}
</style>
<h1>{title}</h1>
<p>{description}</p>
<form id="form">
{fields}
<button>Send</button>
</form>
<p id="status" role="status"></p>
<pre id="answer" hidden></pre>
<p><a href="{document}">OpenAPI document</a></p>
<script>
const form = document.getElementById("form"), state = document.getElementById("status");
const answer = document.getElementById("answer");
form.addEventListener("submit", async (event) => {{
  event.preventDefault();
  const data = new FormData();
  for (const field of form.querySelectorAll("[name]")) {{
    if (field.type === "file") {{ if (field.files.length) data.append(field.name, field.files[0]); }}
    else if (field.value !== "" || field.dataset.required) data.append(field.name, field.value);
  }}
  answer.hidden = false;
  answer.textContent = "";
  state.textContent = "…";
  const started = performance.now();
  try {{
    const response = await fetch({address}, {{ method: "POST", body: [...data].length ? data : undefined }});
    const kind = response.headers.get("content-type") || "";
    const ms = Math.round(performance.now() - started);
    state.textContent = response.status + " " + response.statusText + ", " + kind + ", " + ms + " ms";
    if (kind.startsWith("image/")) {{
      const image = document.createElement("img");
      image.src = URL.createObjectURL(await response.blob());
      answer.replaceChildren(image);
    }} else if (kind.startsWith("application/json")) {{
      answer.textContent = JSON.stringify(await response.json(), null, 2);
    }} else if (kind.startsWith("application/octet-stream") || kind.startsWith("application/x-npy")) {{
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await response.blob());
      link.download = "answer";
      link.textContent = "save the answer";
      answer.replaceChildren(link);
    }} else {{
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part; !(part = await reader.read()).done;) answer.textContent += part.value;
    }}
  }} catch (error) {{
    state.textContent = String(error);
  }}
}});
</script>
</html>
"""


def page(function: Any, parameters: Parameters, *, document: str, address: str) -> str:
    """The page as HTML.

    Args:
        function: the function.
        parameters: its parameters.
        document: address of the OpenAPI document, relative to the page.
        address: address that requests are sent to, relative to the page.
    """
    schemas = Schemas()
    fields = [_field(each, schemas) for each in parameters.all]
    # In a script, "<" could begin an element that ends the script.
    script_address = json.dumps(address).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(function.__name__),
        description=html.escape((function.__doc__ or "").strip()),
        fields="\n".join(fields) or "<p>This function takes no parameters.</p>",
        document=html.escape(document),
        address=script_address,
    )


def _field(parameter: Parameter, schemas: Schemas) -> str:
    kind = getattr(plain(parameter.annotation), "__name__", None) or str(parameter.annotation)
    note = kind if parameter.required else kind + ", optional"
    name = html.escape(parameter.name)
    label = '<label for="%s">%s <small>%s</small></label>' % (name, name, html.escape(note))
    if parameter.kind in BINARY and parameter.kind != ARRAY:
        accept = ' accept="image/*"' if parameter.kind == IMAGE else ""
        return '%s<input type="file" id="%s" name="%s"%s>' % (label, name, name, accept)
    required = ' data-required="1"' if parameter.required else ""
    schema = schemas.of(parameter.annotation)
    value = _example(schema, schemas, 0) if parameter.required else _shown_default(parameter)
    if parameter.kind == SCALAR:
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        attributes = 'id="%s" name="%s"%s' % (name, name, required)
        return '%s<input type="text" %s value="%s">' % (label, attributes, html.escape(text))
    text = json.dumps(value, indent=1) if value is not None or parameter.required else ""
    if parameter.kind == ARRAY:
        text = "[[0.0, 1.0], [2.0, 3.0]]" if parameter.required else ""
    return '%s<textarea id="%s" name="%s"%s>%s</textarea>' % (label, name, name, required, html.escape(text))


def _shown_default(parameter: Parameter) -> Any:
    try:
        return simple(parameter.default) if parameter.kind in (SCALAR, JSON) else None
    except TypeError:
        return None


def _example(schema: Dict[str, Any], schemas: Schemas, depth: int) -> Any:  # noqa: PLR0911 - a case each
    """A value that fits a schema, to begin with."""
    if depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return _example(schemas.components.get(schema["$ref"].rpartition("/")[2], {}), schemas, depth + 1)
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], schemas, depth + 1)
    if schema.get("type") == "object" or "properties" in schema:
        required: List[str] = schema.get("required", [])
        fields = schema.get("properties", {})
        return {name: _example(each, schemas, depth + 1) for name, each in fields.items() if name in required}
    if schema.get("type") == "array":
        items = schema.get("prefixItems") or [schema.get("items") or {"type": "number"}]
        return [_example(each, schemas, depth + 1) for each in items]
    minimum = schema.get("minimum")
    if minimum is not None:
        return minimum
    return _EXAMPLES.get(str(schema.get("type")))
