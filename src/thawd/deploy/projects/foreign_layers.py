"""Layers of other AWS accounts in a template: thawd cannot fetch them, and takes what the user has in their place.

A layer that the user gives becomes a layer of the stack, so it is updated and deleted with the stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thawd.deploy.projects.stacks import ProjectError
from thawd.deploy.projects.zip_files import Source
from thawd.resources import ACCOUNT_ID

# The end of a layer version's ARN, in a text or in an intrinsic function.
# Source: Lambda API reference, "LayerVersionArn".
_FOREIGN = re.compile(rf":(?P<layer>(?!{ACCOUNT_ID})\d{{12}}:layer:(?P<name>[\w-]+))(?P<version>:\d+)?")
_ARN_PREFIX = re.compile(r"arn:[\w-]+:lambda:[\w-]*:")
_KIND = "AWS::Lambda::LayerVersion"


def layer_key(text: str) -> str:
    """The key of a layer: its name, `ACCOUNT:layer:NAME` or `ACCOUNT:layer:NAME:VERSION`, also from an ARN."""
    return _ARN_PREFIX.sub("", text)


class ForeignLayers:
    """Replaces layers of other accounts in one template.

    Args:
        given: folders or zip files with the layers' content, by their keys.
        add: stores content for CloudFormation, and returns its place: bucket and key.
        archive: makes a zip file.
    """

    def __init__(
        self,
        given: Mapping[str, Path],
        add: Callable[[bytes], dict[str, str]],
        archive: Callable[[Sequence[Source]], bytes],
    ) -> None:
        self._given, self._add, self._archive = given, add, archive
        self.resources: dict[str, dict[str, Any]] = {}
        self.sources: set[Path] = set()
        self.notes: list[str] = []

    def replaced(self, user: str, layers: Any) -> Any:
        """The property `Layers` with the user's layers in it.

        Args:
            user: the logical id of the function that has the property, for messages.
            layers: the property. It stays as it is.

        Raises:
            ProjectError: a file that the user gave is no zip file.
        """
        if not isinstance(layers, list):
            return layers
        return [self._replaced(user, each) for each in layers]

    def _replaced(self, user: str, layer: Any) -> Any:
        found = _FOREIGN.search(json.dumps(layer))
        if found is None:
            return layer
        keys = (f"{found['layer']}{found['version'] or ''}", found["layer"], found["name"])
        path = next((self._given[key] for key in keys if key in self._given), None)
        if path is not None:
            return {"Ref": self._resource(found["name"], path)}
        self.notes.append(
            f"{user}: the layer {found['layer']} belongs to another AWS account, and thawd cannot fetch it: give a "
            f"folder or zip file with its content, --layer {found['name']}=PATH"
        )
        return layer

    def _resource(self, name: str, path: Path) -> str:
        """The logical id of the stack's own layer."""
        logical_id = f"ThawdLayer{re.sub(r'[^A-Za-z0-9]', '', name)}"
        if logical_id not in self.resources:
            if not path.exists():
                raise ProjectError(f"there is no {path}, which --layer {name} names")
            content = self._archive([Source(path, "")]) if path.is_dir() else path.read_bytes()
            self.sources.add(path)
            self.resources[logical_id] = {
                "Type": _KIND,
                "Properties": {"LayerName": name, "Content": self._add(content)},
            }
        return logical_id
