"""Values of a CloudFormation template get the types that an operation's parameters have."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel

from thawd.server.emulator.template_values import fitted


def fit(operation: str, given: Any) -> Any:
    model = ServiceModel(Loader().load_service_model("lambda", "service-2"))
    return fitted(model.operation_model(operation).input_shape, given)


@pytest.mark.parametrize(
    ("operation", "given", "wanted"),
    [
        ("CreateFunction", {"MemorySize": "256", "Publish": "true"}, {"MemorySize": 256, "Publish": True}),
        ("CreateFunction", {"EphemeralStorage": {"Size": "600"}}, {"EphemeralStorage": {"Size": 600}}),
        (
            "CreateFunction",
            {"Environment": {"Variables": {"N": 1, "ON": True, "T": "x", "F": 1.5}}},
            {"Environment": {"Variables": {"N": "1", "ON": "true", "T": "x", "F": "1.5"}}},
        ),
        ("CreateFunction", {"Layers": [1, "a"]}, {"Layers": ["1", "a"]}),
        ("CreateFunction", {"MemorySize": "much", "Publish": "perhaps"}, {"MemorySize": "much", "Publish": "perhaps"}),
        ("CreateFunction", {"Environment": "x", "Other": "1"}, {"Environment": "x", "Other": "1"}),
        ("CreateEventSourceMapping", {"StartingPositionTimestamp": "1.5"}, {"StartingPositionTimestamp": 1.5}),
        ("PutFunctionConcurrency", {"ReservedConcurrentExecutions": "0"}, {"ReservedConcurrentExecutions": 0}),
    ],
)
def test_values_get_the_types_of_the_parameters(operation: str, given: Any, wanted: Any) -> None:
    assert fit(operation, given) == wanted
