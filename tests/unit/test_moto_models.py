"""`thawd.server.emulator.cloudformation.providers.moto_models`: which class of moto makes a type's resources."""

from __future__ import annotations

import subprocess
import sys

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
