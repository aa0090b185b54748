"""`thawd.gateway.aws.error_documents`: the parsers of botocore read the errors, in every protocol of AWS."""

from __future__ import annotations

from xml.etree import ElementTree

import botocore.parsers
import pytest
from botocore.model import StructureShape

from thawd.gateway.aws import error_documents
from thawd.gateway.aws.error_documents import ServiceError
from thawd.gateway.metrics.protocols import QueryProtocol

TARGET = {"x-amz-target": "AWSEvents.PutRule", "content-type": "application/x-amz-json-1.1"}
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
REQUESTS = {
    "rest-json": ({}, "apigateway", ""),
    "json": (TARGET, "events", ""),
    "query": (FORM, "sns", ""),
    "query in the URL": ({}, "iam", "Version=2010-05-08&Action=ListUsers"),
    "ec2": (FORM, "ec2", ""),
    "rest-xml": ({}, "s3", ""),
    "rest-xml of another service": ({}, "route53", ""),
    "smithy-rpc-v2-cbor": ({"smithy-protocol": "rpc-v2-cbor"}, "monitoring", ""),
}
PARSERS = {"query in the URL": "query", "rest-xml of another service": "rest-xml"}
LONG = "The emulator has no <operation> & says so: " + "ü" * 200


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("message", ["short", LONG])
def test_botocore_reads_code_and_message(name: str, message: str) -> None:
    headers, service, query = REQUESTS[name]
    protocol = error_documents.protocol_of(headers.get, service=service, query=query)
    error = ServiceError("NotImplemented", message, 501, "some-id")
    body = error_documents.document(protocol, error)
    sent = {key.lower(): value for key, value in error_documents.headers(protocol, error)}
    parser = botocore.parsers.create_parser(PARSERS.get(name, name))
    shape = StructureShape("Nothing", {"type": "structure", "members": {}})
    parsed = parser.parse({"status_code": 501, "headers": sent, "body": body}, shape)
    assert (parsed["Error"]["Code"], parsed["Error"]["Message"]) == ("NotImplemented", message)
    assert parsed["ResponseMetadata"]["RequestId"] == "some-id"
    assert protocol.reads(body)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("body", [b"<!doctype html>\n<html>", b"", b" <HTML>", b"plain text"])
def test_a_page_is_not_read_as_an_error(name: str, body: bytes) -> None:
    headers, service, query = REQUESTS[name]
    assert not error_documents.protocol_of(headers.get, service=service, query=query).reads(body)


def test_clients_that_speak_cbor_with_a_target_get_cbor() -> None:
    headers = {"x-amz-target": "Kinesis_20131202.PutRecord", "content-type": "application/x-amz-cbor-1.1"}
    protocol = error_documents.protocol_of(headers.get, service="kinesis", query="")
    assert protocol.content_type == "application/x-amz-cbor-1.1"
    error = ServiceError("A", "b", 400, "")
    assert error_documents.document(protocol, error) == b"\xa2\x66__type\x61A\x67message\x61b"
    assert not protocol.reads(b'{"__type": "A"}')


@pytest.mark.parametrize("name", ["query", "ec2", "rest-xml"])
def test_characters_that_xml_lacks_do_not_spoil_the_document(name: str) -> None:
    headers, service, query = REQUESTS[name]
    protocol = error_documents.protocol_of(headers.get, service=service, query=query)
    body = error_documents.document(protocol, ServiceError("NotImplemented", "a\x1bb\uffff", 501, "some-id"))
    assert "a\ufffdb\ufffd" in "".join(ElementTree.fromstring(body).itertext())


def test_metrics_with_characters_that_xml_lacks_do_not_spoil_a_list() -> None:
    metric = {"Namespace": "a\x01", "MetricName": "\uffff", "Dimensions": []}
    _, body = QueryProtocol().answer("ListMetrics", {"Metrics": [metric]}, "some-id")
    assert "a\ufffd\ufffd" in "".join(ElementTree.fromstring(body).itertext())
