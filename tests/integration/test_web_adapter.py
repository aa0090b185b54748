"""AWS Lambda Web Adapter's contract, with a stand-in for the adapter.

A web application is the function's program. An extension beside it asks the Runtime API for invocations and passes them
to the application over HTTP.

Source: the adapter's README, "How does it work?": an external extension, a readiness check, a Runtime API client.
"""

from __future__ import annotations

import json
import sys
import urllib.request

from tests.ports import quiet_port

from .conftest import Project, eventually

ADAPTER = f"""#!{sys.executable}
import base64, http.client, json, os, threading, time
api = os.environ["AWS_LAMBDA_RUNTIME_API"]
port = int(os.environ["AWS_LWA_PORT"])

def call(connection, method, path, body=None, **headers):
    connection.request(method, path, body, {{name.replace("_", "-"): value for name, value in headers.items()}})
    answer = connection.getresponse()
    return answer, answer.read()

def follow(identifier):
    events = http.client.HTTPConnection(api)
    while True:
        call(events, "GET", "/2020-01-01/extension/event/next", Lambda_Extension_Identifier=identifier)

registering = http.client.HTTPConnection(api)
answer, _ = call(registering, "POST", "/2020-01-01/extension/register", json.dumps({{"events": []}}),
                 Lambda_Extension_Name=os.path.basename(__file__))
threading.Thread(target=follow, args=[answer.getheader("Lambda-Extension-Identifier")], daemon=True).start()
while True:
    try:
        application = http.client.HTTPConnection("127.0.0.1", port)
        call(application, "GET", os.environ.get("AWS_LWA_READINESS_CHECK_PATH", "/"))
        break
    except OSError:
        time.sleep(0.01)
runtime = http.client.HTTPConnection(api)
while True:
    answer, body = call(runtime, "GET", "/2018-06-01/runtime/invocation/next")
    identifier, event = answer.getheader("Lambda-Runtime-Aws-Request-Id"), json.loads(body)
    http_part = event["requestContext"]["http"]
    content = event.get("body", "").encode()
    if event.get("isBase64Encoded"):
        content = base64.b64decode(content)
    target = event["rawPath"] + ("?" + event["rawQueryString"] if event["rawQueryString"] else "")
    headers = {{name: value for name, value in event["headers"].items() if name != "connection"}}
    application.request(http_part["method"], target, content, headers)
    response = application.getresponse()
    told = {{"statusCode": response.status, "headers": dict(response.getheaders()), "isBase64Encoded": True,
             "body": base64.b64encode(response.read()).decode()}}
    call(runtime, "POST", "/2018-06-01/runtime/invocation/" + identifier + "/response", json.dumps(told))
"""

APPLICATION = f"""#!{sys.executable}
import http.server, json, os

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = json.dumps([self.command, self.path, content.decode(), self.headers.get("x-colour")]).encode()
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *arguments):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["AWS_LWA_PORT"])), Handler).serve_forever()
"""


def test_a_web_application_answers_through_an_adapter_that_is_an_extension(project: Project) -> None:
    port = quiet_port()
    for name, text in (("bootstrap", APPLICATION), ("extensions/lambda-adapter", ADAPTER)):
        path = project.root / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    project.config(
        "[functions.web]\n"
        'runtime = "provided.al2023"\nhandler = "run"\ncode = "code"\n'
        f'environment = {{ AWS_LWA_PORT = "{port}" }}\n'
        '[functions.web.url]\nauth_type = "NONE"\n'
        '[routes]\n"ANY /app/{rest+}" = "web"\n'
    )
    with project.up() as running:
        url = running.client().get_function_url_config(FunctionName="web")["FunctionUrl"]
        with urllib.request.urlopen(f"{url}items/1?a=b%20c", timeout=60) as answer:
            assert (answer.status, json.load(answer)) == (200, ["GET", "/items/1?a=b%20c", "", None])
        headers = {"x-colour": "red", "content-type": "text/plain"}
        asked = urllib.request.Request(f"{running.url}/app/x", b"caf\xc3\xa9", headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert (answer.status, json.load(answer)) == (201, ["POST", "/app/x", "café", "red"])
            assert answer.headers["content-type"] == "application/json"
        eventually(lambda: running.function("web")["environments"]["idle"] == 1, what="one environment for both")
