"""thawd: serverless machine-learning inference on your own machine.

Inside a handler, ``import thawd`` gives access to the platform's tables and buckets::

    thawd.table("labels").put("cat.png", {"label": "cat"})
    image = thawd.bucket("uploads").read("cat.png")

``thawd.function`` makes an HTTP endpoint of a function with annotations, and ``thawd.HttpError`` is how it refuses a
request.

In a function of a stack that ``thawd deploy aws`` made, they are over S3 and DynamoDB, on AWS as in thawd.

This package imports `thawd.runtime.services` only when a handler uses `table` or `bucket`. Every execution environment
imports this package, and each module that the package imports becomes part of every template and snapshot.
"""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["HttpError", "__version__", "bucket", "function", "table"]

if TYPE_CHECKING:
    from thawd.runtime.services import bucket, table
    from thawd.typed.function import HttpError, function


def __getattr__(name: str) -> Any:
    if name in ("bucket", "table"):
        if "STACK_THAWD_BUCKETS" in os.environ or "STACK_THAWD_TABLES" in os.environ:
            from thawd.runtime import deployed_services

            return getattr(deployed_services, name)
        from thawd.runtime import services

        return getattr(services, name)
    if name in ("HttpError", "function"):
        from thawd.typed import function as typed

        return getattr(typed, name)
    raise AttributeError(f"module 'thawd' has no attribute {name!r}")
