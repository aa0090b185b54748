"""Structured logs on a real server: the function's records and the platform's lines as JSON."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import textwrap
import zipfile
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually
from tests.integration.test_logs_api import logs_of

CODE = """
    import logging, os, sys, time

    logging.warning("in init")

    class Odd:
        def __str__(self):
            return "odd"

    def handler(event, context):
        log = logging.getLogger("shop.cart")
        if event == "levels":
            for level in ("debug", "info", "warning", "error", "critical"):
                getattr(log, level)("at %s", level)
        elif event == "extra":
            log.error("of %d", 7, extra={"user": "ann", "odd": Odd(), "n": 1.5, "table": {1: 2}, "nothing": None})
        elif event == "caught":
            try:
                1 / 0
            except ZeroDivisionError:
                log.exception("caught")
        elif event == "raise":
            raise ValueError("two\\nlines")
        elif event == "exit":
            os._exit(3)
        elif event == "sleep":
            time.sleep(30)
        else:
            print("plain", event)
        return os.environ["AWS_LAMBDA_LOG_FORMAT"], os.environ.get("AWS_LAMBDA_LOG_LEVEL")
"""


def lines_of(server: Running, function: str, event: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of one invocation: those that are JSON objects, and the others."""
    answer = server.client().invoke(FunctionName=function, Payload=json.dumps(event), LogType="Tail")
    documents, plain = [], []
    for line in base64.b64decode(answer["LogResult"]).decode().splitlines():
        if line.startswith("{"):
            documents.append(json.loads(line))
        else:
            plain.append(line)
    return documents, plain


def records_of(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document["record"] for document in documents if document.get("type") == kind]


def config_of(name: str, **options: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    return "\n".join([f"[functions.{name}]", 'handler = "app.handler"', *lines, ""])


@pytest.mark.parametrize("snapshots", ["auto", "off"])
def test_records_of_logging_are_json_objects(project: Project, snapshots: str) -> None:
    project.code(CODE)
    project.config(config_of("f", log_format="JSON", system_log_level="WARN") + config_of("t"))
    with project.up(environ={"THAWD_SNAPSHOTS": snapshots}) as server:
        assert server.invoke("f", "env")[0] == ["JSON", "INFO"]
        assert server.invoke("t", "env")[0] == ["Text", None]
        documents, plain = lines_of(server, "f", "levels")
        assert plain == []
        assert [document["level"] for document in documents] == ["INFO", "WARNING", "ERROR", "CRITICAL"]
        first = documents[0]
        assert first["message"] == "at info"
        assert first["logger"] == "shop.cart"
        assert re.fullmatch(r"[0-9a-f-]{36}", first["requestId"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["timestamp"])
        assert set(first) == {"timestamp", "level", "message", "logger", "requestId"}

        (extra,), _ = lines_of(server, "f", "extra")
        assert extra["message"] == "of 7"
        assert (extra["user"], extra["odd"], extra["n"], extra["table"]) == ("ann", "odd", 1.5, {"1": 2})
        assert "nothing" not in extra

        (caught,), _ = lines_of(server, "f", "caught")
        assert (caught["errorType"], caught["errorMessage"]) == ("ZeroDivisionError", "division by zero")
        assert "1 / 0" in "".join(caught["stackTrace"])
        assert re.fullmatch(r".*app\.py:handler:\d+", caught["location"])

        documents, plain = lines_of(server, "f", "raise")
        fault = next(document for document in documents if "log_level" in document)
        assert (fault["log_level"], fault["errorType"], fault["errorMessage"]) == ("ERROR", "ValueError", "two\nlines")
        assert fault["stackTrace"]
        assert plain == []
        # Printed text stays as it is, and so does the log of a function with the default settings.
        assert lines_of(server, "f", "hello") == ([], ["plain hello"])
        assert lines_of(server, "t", "extra")[0] == []


def test_the_platforms_lines_are_json_objects_by_level(project: Project) -> None:
    project.code(CODE)
    project.config(
        config_of("debug", log_format="JSON", system_log_level="DEBUG", application_log_level="FATAL", timeout_s=4)
        + config_of("info", log_format="JSON", application_log_level="TRACE")
        + config_of("warn", log_format="JSON", system_log_level="WARN")
    )
    with project.up() as server:
        documents, plain = lines_of(server, "debug", "x")
        assert plain == ["plain x"]
        (start,), (done,) = records_of(documents, "platform.start"), records_of(documents, "platform.runtimeDone")
        (report,) = records_of(documents, "platform.report")
        assert start["version"] == "$LATEST"
        assert start["requestId"] == done["requestId"] == report["requestId"]
        assert done["status"] == report["status"] == "success"
        metrics = report["metrics"]
        assert metrics["memorySizeMB"] == 512
        assert metrics["maxMemoryUsedMB"] > 0
        assert metrics["billedDurationMs"] >= metrics["durationMs"] > 0
        assert metrics["restoreDurationMs"] > 0
        assert all(re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", document["time"]) for document in documents)

        kinds = [document.get("type") for document in lines_of(server, "info", "levels")[0]]
        assert kinds == ["platform.start", *[None] * 5, "platform.report"]
        assert lines_of(server, "debug", "levels")[0][1]["level"] == "CRITICAL"
        assert lines_of(server, "warn", "x") == ([], ["plain x"])

        for event, status, error_type in (
            ("exit", "error", "Runtime.ExitError"),
            ("sleep", "timeout", "Sandbox.Timedout"),
        ):
            documents, _ = lines_of(server, "debug", event)
            (report,) = records_of(documents, "platform.report")
            assert (report["status"], report["errorType"]) == (status, error_type)
        (report,) = records_of(lines_of(server, "warn", "raise")[0], "platform.report")
        assert report["status"] == "error"

        def started() -> list[dict[str, Any]]:
            events = logs_of(server.url).filter_log_events(
                logGroupName="/aws/lambda/debug", filterPattern='{ $.type = "platform.*Start" }'
            )["events"]
            return [json.loads(event["message"]) for event in events]

        kinds = {document["type"]: document["record"] for document in started()}
        assert kinds["platform.initStart"]["initializationType"] == "snap-start"
        assert kinds["platform.restoreStart"]["functionName"] == "debug"


def test_functions_may_share_a_log_group(project: Project) -> None:
    project.code(CODE)
    project.config(config_of("one", log_group="/team/shared") + config_of("two", log_group="/team/shared"))
    with project.up() as server:
        server.invoke("one", 1)
        server.invoke("two", 2)
        logs = logs_of(server.url)
        assert [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]] == ["/team/shared"]
        events = logs.filter_log_events(logGroupName="/team/shared", filterPattern="plain")["events"]
        found = {event["message"]: event["logStreamName"] for event in events}
        assert re.fullmatch(r"\d{4}/\d\d/\d\d/one\[\$LATEST\][0-9a-f]{32}", found["plain 1\n"])
        assert "/two[$LATEST]" in found["plain 2\n"]
        eventually(lambda: "plain 1" in project.command("logs", "one", "--raw").stdout, what="the log")
        eventually(lambda: "plain 2" in project.command("logs", "/team/shared", "--raw").stdout, what="the shared log")
        absent = project.command("logs", "/team/other")
        assert (absent.returncode, "no log group '/team/other'" in absent.stderr) == (1, True)


def test_levels_without_json_are_a_mistake(project: Project) -> None:
    project.code(CODE)
    project.config(config_of("f", application_log_level="INFO"))
    done = project.command("check")
    assert done.returncode == 1
    assert 'functions.f.application_log_level: found "INFO"; allowed: no level unless log_format = "JSON"' in (
        done.stdout + done.stderr
    )


def test_loggingconfig_of_the_lambda_api_decides_form_levels_and_group(project: Project) -> None:
    """CreateFunction, UpdateFunctionConfiguration; API reference, "LoggingConfig"."""
    project.code("def handler(event, context):\n    return 1\n")
    project.config('[functions.declared]\nhandler = "app.handler"\nlog_format = "JSON"\nlog_group = "/own"\n')
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", textwrap.dedent(CODE))
    with project.up() as server:
        client = server.client()
        declared = client.get_function_configuration(FunctionName="declared")["LoggingConfig"]
        assert declared == {
            "LogFormat": "JSON",
            "LogGroup": "/own",
            "ApplicationLogLevel": "INFO",
            "SystemLogLevel": "INFO",
        }
        version = ".".join(map(str, sys.version_info[:2]))
        made = client.create_function(
            FunctionName="f",
            Runtime=f"python{version}",
            Role="arn:aws:iam::000000000000:role/r",
            Handler="app.handler",
            Code={"ZipFile": packed.getvalue()},
            LoggingConfig={"LogFormat": "JSON", "ApplicationLogLevel": "ERROR", "LogGroup": "/team/api"},
        )
        assert made["LoggingConfig"]["SystemLogLevel"] == "INFO"
        client.get_waiter("function_active_v2").wait(FunctionName="f", WaiterConfig={"Delay": 1})
        documents, _ = lines_of(server, "f", "levels")
        assert [document.get("level") for document in documents] == [None, "ERROR", "CRITICAL", None]
        found = logs_of(server.url).filter_log_events(logGroupName="/team/api", filterPattern="{ $.level EXISTS }")
        assert found["events"]
        client.update_function_configuration(FunctionName="f", LoggingConfig={"LogFormat": "Text"})
        client.get_waiter("function_updated_v2").wait(FunctionName="f", WaiterConfig={"Delay": 1})
        assert eventually(lambda: lines_of(server, "f", "levels")[0] == [], what="text")
        for config in (
            {"LogFormat": "Text", "ApplicationLogLevel": "INFO"},
            {"LogFormat": "Text", "LogGroup": "x" * 201},
        ):
            with pytest.raises(client.exceptions.InvalidParameterValueException):
                client.update_function_configuration(FunctionName="f", LoggingConfig=config)
