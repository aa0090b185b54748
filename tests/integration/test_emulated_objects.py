"""Large objects of the emulated S3: parts, ranges, copies, restarts, and the memory that they take."""

from __future__ import annotations

import io
import random
from itertools import pairwise
from pathlib import Path

from boto3.s3.transfer import TransferConfig

from .emulated import EmulatedAws

PART = 5 << 20
CONTENT = random.Random(1).randbytes(2 * PART + 12_345)
BY_PARTS = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)


def test_an_object_of_several_parts_its_copy_and_ranges_are_read_also_after_a_restart(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path) as aws:
        s3 = aws.client("s3")
        s3.create_bucket(Bucket="large")
        s3.upload_fileobj(io.BytesIO(CONTENT), "large", "object", Config=BY_PARTS)
        s3.copy({"Bucket": "large", "Key": "object"}, "large", "copy", Config=BY_PARTS)
    with EmulatedAws(tmp_path) as aws:
        s3 = aws.client("s3")
        for key in ("object", "copy"):
            assert s3.get_object(Bucket="large", Key=key)["Body"].read() == CONTENT
            for wanted, expected in (
                ("bytes=0-9", CONTENT[:10]),
                (f"bytes={PART - 5}-{PART + 4}", CONTENT[PART - 5 : PART + 5]),
                ("bytes=-7", CONTENT[-7:]),
                (f"bytes={len(CONTENT) - 3}-", CONTENT[-3:]),
                ("nonsense=1", CONTENT),
            ):
                assert s3.get_object(Bucket="large", Key=key, Range=wanted)["Body"].read() == expected
            for number, expected in enumerate((CONTENT[:PART], CONTENT[PART : 2 * PART], CONTENT[2 * PART :]), 1):
                answer = s3.get_object(Bucket="large", Key=key, PartNumber=number)
                assert (answer["Body"].read(), answer["PartsCount"]) == (expected, 3)
        got = io.BytesIO()
        s3.download_fileobj("large", "object", got, Config=BY_PARTS)
        assert got.getvalue() == CONTENT


def test_objects_that_were_removed_take_no_memory(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path) as aws:
        s3 = aws.client("s3")
        s3.create_bucket(Bucket="large")

        def resident_bytes() -> int:
            for _ in range(4):
                s3.upload_fileobj(io.BytesIO(CONTENT), "large", "object", Config=BY_PARTS)
                s3.delete_object(Bucket="large", Key="object")
            status = Path(f"/proc/{aws.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0]) * 1024

        # The allocator keeps some freed memory, but not that of four objects each time.
        sizes = [resident_bytes() for _ in range(3)]
        assert min(after - before for before, after in pairwise(sizes)) < 3 * len(CONTENT), sizes
