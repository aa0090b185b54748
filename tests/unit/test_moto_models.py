"""`thawd.server.emulator.cloudformation.providers.moto_models`: which class of moto makes a type's resources."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from moto import mock_aws

from thawd.server.emulator.cloudformation.providers import moto_models


def test_the_class_of_a_type_is_found_in_the_models_of_its_service() -> None:
    from moto.cloudformation.parsing import get_model_map

    every = {kind: model for kind, model in get_model_map().items() if kind not in ("?", "AWS::SERVICE::RESOURCE")}
    assert {kind: moto_models.class_of(kind) for kind in every} == every


def test_a_type_is_found_without_the_models_of_other_services() -> None:
    program = (
        "import sys\n"
        "from thawd.server.emulator.cloudformation.providers import moto_models\n"
        "assert moto_models.class_of('AWS::Kinesis::Stream').__name__ == 'Stream'\n"
        "assert moto_models.class_of('AWS::CDK::Metadata') is None\n"
        "assert 'moto.ec2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("facts", "attributes"),
    [
        ({"arn": "arn:aws:states:::a"}, {"Arn": "arn:aws:states:::a"}),
        ({"physical_resource_id": "arn:aws:states:::b"}, {"Arn": "arn:aws:states:::b"}),
        ({"arn": None, "physical_resource_id": "c"}, {}),
    ],
)
def test_every_resource_with_an_arn_has_it_as_an_attribute(facts: dict[str, object], attributes: object) -> None:
    def no_attribute(name: str) -> str:
        raise NotImplementedError(name)

    found = moto_models.Attributes(SimpleNamespace(get_cfn_attribute=no_attribute, **facts))
    assert {name: value for name in ("Arn", "Name") if (value := found.get(name)) is not None} == attributes


def test_a_state_machine_has_its_arn_as_an_attribute() -> None:
    """Source: CloudFormation's reference, `AWS::StepFunctions::StateMachine`, return values."""
    model = moto_models.class_of("AWS::StepFunctions::StateMachine")
    properties = {"StateMachineName": "m", "DefinitionString": "{}", "RoleArn": "arn:aws:iam::123456789012:role/r"}
    with mock_aws():
        made = model.create_from_cloudformation_json("m", {"Properties": properties}, "123456789012", "us-east-1")
        assert moto_models.Attributes(made)["Arn"] == made.physical_resource_id
