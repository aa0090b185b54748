"""The AWS X-Ray SDK: a recorder that has sent a segment before the freeze."""

from __future__ import annotations

from typing import Any

import repeated
from aws_xray_sdk.core import xray_recorder


class XRay:
    """The recorder."""

    def __init__(self, options: repeated.Options) -> None:
        xray_recorder.configure(service="thawd", sampling=False, daemon_address=options.address)

    def answer(self, number: int) -> Any:
        with xray_recorder.in_segment(f"answer {number}") as segment:
            segment.put_annotation("name", repeated.name())
            with xray_recorder.in_subsegment("square") as subsegment:
                subsegment.put_annotation("square", number * number)
        return number * number


if __name__ == "__main__":
    repeated.main(XRay)
