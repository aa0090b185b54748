"""The window: pages for people under ``/_thawd/``, made on the server from the status and recorded invocations.

- `endpoint`: routes requests to pages, checks who may see them, and carries out what buttons ask for.
- `session`: the key, the session cookie of a browser, and the tokens in forms.
- `sources`: what the pages are made from.
- `live`: tells open pages that something was recorded.
- `markup`, `layout`: HTML with escaping by default; what all pages have in common; figures as text.
- `now`, `function_page`, `failures`, `invocation_page`, `queue_page`, `snapshots_page`, `try_page`: one page each.
- `elsewhere`: invocations that other machines of a cluster have recorded.
- `machines_table`: the machines of a cluster, on the page Now.
- `cost_section`: what invocations would cost on AWS Lambda, on the page of a function.
- `uploads`: forms with files, and HTTP events made of files.
- `heat_map`, `waterfall`: drawings in SVG.
- `log_lines`, `handler_calls`: the log lines of one invocation, and what its handler called.

Pages work without JavaScript; ``live.js`` only refreshes them.
"""
