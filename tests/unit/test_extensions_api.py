"""The Extensions API: registration, events, states, errors. A real socket without a process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .runtime_api_house import ID, NEXT, RUNTIME, Answer, Client, House, play, ready

EXTENSION = "/2020-01-01/extension/"


async def registered(house: House, name: str = "watcher", *events: str) -> tuple[Client, dict[str, str]]:
    """Return an extension's connection, and the header that identifies the extension."""
    client = await house.client()
    body = json.dumps({"events": events}).encode()
    answer = await client.ask("POST", EXTENSION + "register", body, Lambda_Extension_Name=name)
    assert answer.status == 200
    return client, {"Lambda_Extension_Identifier": answer.headers["lambda-extension-identifier"]}


async def refused(house: House, body: Any, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await (await house.client()).ask("POST", EXTENSION + "register", data, **headers)


def test_registration_tells_of_the_function() -> None:
    async def scene(house: House) -> None:
        answer = await refused(house, {"events": []}, Lambda_Extension_Name="watcher")
        assert answer.status == 200
        assert json.loads(answer.body) == {"functionName": "f", "functionVersion": "$LATEST", "handler": "m.f"}

    play(scene, external=["watcher"])


def test_registration_tells_the_account_to_who_asks_for_it() -> None:
    async def scene(house: House) -> None:
        headers = {"Lambda_Extension_Name": "inside", "Lambda_Extension_Accept_Feature": "accountId"}
        assert json.loads((await refused(house, {"events": ["INVOKE"]}, **headers)).body)["accountId"] == "000000000000"

    play(scene)


@pytest.mark.parametrize(
    ("name", "body", "error"),
    [
        ("", {"events": []}, "Extension.InvalidExtensionName"),
        ("watcher", b"no JSON", "InvalidRequestFormat"),
        ("watcher", {"events": "INVOKE"}, "InvalidRequestFormat"),
        ("watcher", {"events": ["INVOKE", "OTHER"]}, "Extension.InvalidEventType"),
        ("inside", {"events": ["SHUTDOWN"]}, "Extension.InvalidEventType"),
    ],
)
def test_a_registration_that_cannot_be_is_403(name: str, body: Any, error: str) -> None:
    async def scene(house: House) -> None:
        answer = await refused(house, body, **({"Lambda_Extension_Name": name} if name else {}))
        assert (answer.status, answer.error) == (403, error)

    play(scene, external=["watcher"])


def test_an_extension_registers_once_and_before_the_first_invocation() -> None:
    async def scene(house: House) -> None:
        await registered(house, "inside", "INVOKE")
        answer = await refused(house, {"events": []}, Lambda_Extension_Name="inside")
        assert (answer.status, answer.error) == (403, "Extension.InvalidExtensionState")

    play(scene)

    async def late(house: House) -> None:
        await ready(house)
        answer = await refused(house, {"events": []}, Lambda_Extension_Name="inside")
        assert (answer.status, answer.error) == (403, "Extension.RegistrationClosed")

    play(late)


def test_there_are_ten_extensions_at_most() -> None:
    async def scene(house: House) -> None:
        for number in range(10):
            await registered(house, f"inside-{number}")
        answer = await refused(house, {"events": []}, Lambda_Extension_Name="inside-10")
        assert (answer.status, answer.error) == (403, "Extension.TooManyExtensions")

    play(scene)


def test_the_environment_is_ready_when_program_and_extensions_wait() -> None:
    async def scene(house: House) -> None:
        extension, known = await registered(house, "watcher", "INVOKE")
        program = await house.client()
        program.send("GET", NEXT)
        assert (await (await house.client()).ask("GET", "/x")).status == 404  # one turn of the loop later
        assert not house.told
        extension.send("GET", EXTENSION + "event/next", **known)
        await house.until(lambda: house.told)
        house.invoke(b"[1]", trace="Root=1")
        assert (await program.answer()).body == b"[1]"
        told = await extension.answer()
        event = json.loads(told.body)
        assert told.headers["lambda-extension-event-identifier"]
        assert event.pop("deadlineMs") > 1_700_000_000_000
        assert event == {
            "eventType": "INVOKE",
            "requestId": ID,
            "invokedFunctionArn": "arn:f",
            "tracing": {"type": "X-Amzn-Trace-Id", "value": "Root=1"},
        }

    play(scene, external=["watcher"])


def test_the_next_invocation_waits_for_the_extension() -> None:
    async def scene(house: House) -> None:
        extension, known = await registered(house, "watcher", "INVOKE")
        extension.send("GET", EXTENSION + "event/next", **known)
        program = await ready(house)
        house.invoke(b"1")
        await program.answer()
        await extension.answer()
        await program.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"1")
        program.send("GET", NEXT)
        await house.until(lambda: house.answers)  # the answer does not wait for the extension
        house.invoke(b"2", id="second")
        early = await (await house.client()).ask("POST", f"{RUNTIME}invocation/second/response", b"2")
        assert (early.status, early.error) == (400, "InvalidRequestID")
        extension.send("GET", EXTENSION + "event/next", **known)
        assert (await program.answer()).body == b"2"
        assert json.loads((await extension.answer()).body)["requestId"] == "second"

    play(scene, external=["watcher"])


def test_the_end_is_told_to_those_who_asked_for_it() -> None:
    async def scene(house: House) -> None:
        one, known = await registered(house, "one", "SHUTDOWN")
        other, known_other = await registered(house, "other", "INVOKE")
        one.send("GET", EXTENSION + "event/next", **known)
        other.send("GET", EXTENSION + "event/next", **known_other)
        await ready(house)
        house.api.extensions.shut_down("spindown", deadline_ms=5)
        event = json.loads((await one.answer()).body)
        assert event == {"eventType": "SHUTDOWN", "shutdownReason": "spindown", "deadlineMs": 5}
        assert not house.api.extensions.all()[0].is_waiting
        assert house.api.extensions.all()[1].is_waiting

    play(scene, external=["one", "other"])


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, "Extension.MissingExtensionIdentifier"),
        ({"Lambda_Extension_Identifier": "nonsense"}, "Extension.InvalidExtensionIdentifier"),
        ({"Lambda_Extension_Identifier": ID}, "Extension.UnknownExtensionIdentifier"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "event/next"), ("POST", "init/error"), ("POST", "exit/error")])
def test_a_request_without_a_known_identifier_is_403(
    headers: dict[str, str], error: str, method: str, path: str
) -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask(method, EXTENSION + path, b"", **headers)
        assert (answer.status, answer.error) == (403, error)

    play(scene)


@pytest.mark.parametrize("path", ["init/error", "exit/error"])
def test_a_failure_of_an_extension_is_told_by_its_header(path: str) -> None:
    async def scene(house: House) -> None:
        faults: list[str] = []
        house.api.extensions.on_fault = lambda error_type, message: faults.append(error_type)
        client, known = await registered(house, "watcher")
        lacking = await client.ask("POST", EXTENSION + path, b"{}", **known)
        assert (lacking.status, lacking.error) == (403, "Extension.MissingHeader")
        known["Lambda_Extension_Function_Error_Type"] = "Extension.Mine"
        assert (await client.ask("POST", EXTENSION + path, b"{}", **known)).status == 202
        assert faults == ["Extension.Mine"]
        again = await client.ask("POST", EXTENSION + path, b"{}", **known)
        assert (again.status, again.error) == (403, "Extension.InvalidExtensionState")
        after = await client.ask("GET", EXTENSION + "event/next", **known)
        assert (after.status, after.error) == (403, "Extension.InvalidExtensionState")

    play(scene, external=["watcher"])


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "register", 405), ("POST", "event/next", 405), ("GET", "other", 404)]
)
def test_wrong_methods_and_paths_are_told(method: str, path: str, status: int) -> None:
    async def scene(house: House) -> None:
        assert (await (await house.client()).ask(method, EXTENSION + path, b"")).status == status

    play(scene)
