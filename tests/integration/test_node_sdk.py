"""AWS's SDK in Node functions: a globally installed one is found, and under `--aws` it never sends requests to AWS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Project

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on PATH")

CONFIG = """
[runtimes]
"nodejs20.x" = "node"
[functions.common]
handler = "common.handler"
code = "code"
runtime = "nodejs20.x"
[functions.module]
handler = "module.handler"
code = "code"
runtime = "nodejs20.x"
"""


def install(folder: Path, name: str = "client-s3") -> None:
    """Install a client as npm does, for `require` and for `import`."""
    package = folder / "@aws-sdk" / name
    package.mkdir(parents=True)
    described = {
        "name": f"@aws-sdk/{name}",
        "version": "3.900.0",
        "exports": {"import": "./index.mjs", "require": "./index.cjs"},
    }
    (package / "package.json").write_text(json.dumps(described))
    (package / "index.mjs").write_text("export const S3Client = class { kind() { return 'imported'; } };\n")
    (package / "index.cjs").write_text("exports.S3Client = class { kind() { return 'required'; } };\n")


def functions(project: Project) -> None:
    project.code(
        'const { S3Client } = require("@aws-sdk/client-s3");\nexports.handler = async () => new S3Client().kind();\n',
        "code/common.js",
    )
    project.code(
        'import { S3Client } from "@aws-sdk/client-s3";\nexport const handler = async () => new S3Client().kind();\n',
        "code/module.mjs",
    )
    project.config(CONFIG)


def test_clients_that_npm_has_installed_for_all_are_found(project: Project) -> None:
    functions(project)
    install(project.root / "npm" / "lib" / "node_modules")
    with project.up(environ={"NODE_PATH": str(project.root / "npm" / "lib" / "node_modules")}) as running:
        assert running.invoke("common") == ("required", None)
        assert running.invoke("module") == ("imported", None)


def test_the_functions_own_client_comes_first(project: Project) -> None:
    functions(project)
    install(project.root / "npm" / "lib" / "node_modules")
    install(project.root / "code" / "node_modules")
    for name in ("index.mjs", "index.cjs"):
        path = project.root / "code" / "node_modules" / "@aws-sdk" / "client-s3" / name
        path.write_text(path.read_text().replace("ed'", "ed, the own'"))
    with project.up(environ={"NODE_PATH": str(project.root / "npm" / "lib" / "node_modules")}) as running:
        assert running.invoke("common") == ("required, the own", None)
        assert running.invoke("module") == ("imported, the own", None)


def test_a_client_that_is_nowhere_is_told_with_the_way_out(project: Project) -> None:
    functions(project)
    with project.up(environ={"NODE_PATH": ""}) as running:
        for name in ("common", "module"):
            told, error = running.invoke(name)
            assert (told["errorType"], error) == ("Runtime.ImportModuleError", "Unhandled")
            assert "npm install --global @aws-sdk/client-" in told["errorMessage"]


LEAVES = """
import https, { get, request } from "node:https";
import http from "node:http";
const ways = [
  () => https.request("https://s3.us-east-1.amazonaws.com/"),
  () => request({ hostname: "b.s3.amazonaws.com", path: "/" }),
  () => get(new URL("https://x.eu-west-1.api.aws/")),
  () => http.request({ host: "sqs.cn-north-1.amazonaws.com.cn:80" }),
];
const here = (url) => new Promise((done, failed) => {
  http.get(url, (answer) => { answer.resume(); done(answer.statusCode); }).on("error", failed);
});
export const handler = async (event) => {
  const refused = ways.map((way) => { try { way(); return "left"; } catch (error) { return error.name; } });
  return [...refused, await here(process.env.AWS_ENDPOINT_URL + "/_thawd/status")];
};
"""


def test_no_request_leaves_for_aws(project: Project) -> None:
    functions(project)
    project.code(LEAVES, "code/module.mjs")
    with project.up("--aws") as running:
        assert running.invoke("module") == (["LeavesForAwsError"] * 4 + [200], None)


# As version 2 has it: the clients take the endpoint of the configuration that `lib/core.js` exports.
_VERSION_2 = {
    "lib/core.js": "module.exports = { config: {} };\n",
    "clients/s3.js": (
        "const core = require('../lib/core');\n"
        "module.exports = class { where() { return [core.config.endpoint, core.config.s3ForcePathStyle]; } };\n"
    ),
    "index.js": "const core = require('./lib/core');\nmodule.exports = { ...core, S3: require('./clients/s3') };\n",
    "package.json": '{"name": "aws-sdk", "version": "2.1692.0", "main": "index.js"}',
}
_USES_VERSION_2 = """
const AWS = require("aws-sdk");
const S3 = require("aws-sdk/clients/s3");
exports.handler = async () => [new AWS.S3().where(), new S3().where(), process.env.AWS_ENDPOINT_URL];
"""
_IMPORTS_VERSION_2 = """
import AWS from "aws-sdk";
export const handler = async () => [new AWS.S3().where(), process.env.AWS_ENDPOINT_URL];
"""


def test_version_2_of_the_sdk_uses_the_emulated_services(project: Project) -> None:
    for name, text in _VERSION_2.items():
        project.code(text, f"code/node_modules/aws-sdk/{name}")
    project.code(_USES_VERSION_2, "code/common.js")
    project.code(_IMPORTS_VERSION_2, "code/module.mjs")
    project.config(CONFIG)
    with project.up("--aws") as running:
        here = [running.url, True]
        assert running.invoke("common") == ([here, here, running.url], None)
        assert running.invoke("module") == ([here, running.url], None)
