"""`thawd.control.quotas`, and the largest package that the store of uploaded code accepts."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path

import pytest

from thawd.control.quotas import aws_quotas, machine_quotas
from thawd.errors import InvalidParameterValueException
from thawd.stores.uploaded_code import CodeStore


def test_aws_quotas_are_those_of_the_developer_guide() -> None:
    quotas = aws_quotas()
    assert (quotas.zip_bytes, quotas.unzipped_bytes(), quotas.environment_bytes, quotas.layers) == (
        52_428_800,
        262_144_000,
        4096,
        5,
    )


def test_a_package_may_take_half_of_the_free_space_and_never_less_than_on_aws() -> None:
    assert machine_quotas(lambda: 10**12).unzipped_bytes() == 5 * 10**11
    assert machine_quotas(lambda: 0).unzipped_bytes() == 262_144_000


def test_a_package_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, most_bytes=lambda: 1000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 1001)
    with pytest.raises(InvalidParameterValueException, match="Unzipped size must be smaller than 1000 bytes"):
        asyncio.run(store.add(buffer.getvalue()))
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 1000)
    assert asyncio.run(store.add(buffer.getvalue())).unzipped_bytes == 1000
