"""Imports in advance what a first stack needs. Runs in the emulator's own process, while it waits for requests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import threading

from thawd.server.emulator.module_changes import without_collector

# Nearly every project has a role and code in a bucket, and most projects are made from SAM's resources.
_MODULES = (
    "moto.cloudformation.responses",
    "moto.s3.responses",
    "moto.iam.responses",
    "boto3",
    "samtranslator.parser.parser",
    "samtranslator.translator.translator",
)
_SERVICES = ("cloudformation", "s3", "iam", "lambda")


def begin() -> None:
    """Import in a thread. A request that needs one of the modules earlier imports it itself."""
    threading.Thread(target=import_now, name="imports-ahead", daemon=True).start()


def import_now() -> None:
    """Import, and read the services' models, in this thread."""
    with without_collector():
        for name in _MODULES:
            with contextlib.suppress(ImportError):  # a request that needs the module reports that
                importlib.import_module(name)
        gc.freeze()  # the collector need not look at what was imported
    import botocore.session

    session = botocore.session.get_session()
    loader = session.get_component("data_loader")  # all sessions share it: `service_models`
    session.get_available_partitions()
    for service in _SERVICES:
        loader.load_service_model(service, "service-2")
        loader.load_service_model(service, "endpoint-rule-set-1")
