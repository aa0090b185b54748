"""The modules that AWS adds to functions whose code is text in a template: ``cfnresponse`` and ``cfn-response``.

A function that makes a custom resource sends its result to CloudFormation with them. Unlike AWS's module, the one for
Node can also send to an ``http://`` URL.

Source: CloudFormation user guide, "cfn-response module".
"""

from __future__ import annotations

_PYTHON = '''"""Answers CloudFormation for a custom resource."""
import json
import urllib.request

SUCCESS = "SUCCESS"
FAILED = "FAILED"


def send(event, context, responseStatus, responseData, physicalResourceId=None, noEcho=False, reason=None):
    """Send the outcome of the request in `event`."""
    answer = {
        "Status": responseStatus,
        "Reason": reason or "See the details in CloudWatch Log Stream: " + context.log_stream_name,
        "PhysicalResourceId": physicalResourceId or context.log_stream_name,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "NoEcho": noEcho,
        "Data": responseData,
    }
    body = json.dumps(answer).encode()
    request = urllib.request.Request(event["ResponseURL"], body, {"Content-Type": ""}, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()
'''

_NODE = """// Answers CloudFormation for a custom resource.
exports.SUCCESS = "SUCCESS";
exports.FAILED = "FAILED";

exports.send = function (event, context, responseStatus, responseData, physicalResourceId, noEcho) {
  const body = JSON.stringify({
    Status: responseStatus,
    Reason: "See the details in CloudWatch Log Stream: " + context.logStreamName,
    PhysicalResourceId: physicalResourceId || context.logStreamName,
    StackId: event.StackId,
    RequestId: event.RequestId,
    LogicalResourceId: event.LogicalResourceId,
    NoEcho: noEcho || false,
    Data: responseData,
  });
  const address = new URL(event.ResponseURL);
  const options = { method: "PUT", headers: { "content-type": "", "content-length": Buffer.byteLength(body) } };
  const request = require(address.protocol === "http:" ? "http" : "https").request(address, options, (answer) => {
    answer.resume();
    context.done();
  });
  request.on("error", (error) => context.done(error));
  request.end(body);
};
"""


def needed_by(source: str, *, is_node: bool) -> dict[str, str]:
    """Return the files, text by name, that must be beside a function's source text."""
    if is_node:
        return {"node_modules/cfn-response.js": _NODE} if "cfn-response" in source else {}
    return {"cfnresponse.py": _PYTHON} if "cfnresponse" in source else {}
