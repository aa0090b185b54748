"""Opens the stores of a server: the state file, the catalog of objects, tables, and remote buckets.

The state file is the SQLite database ``thawd.db`` in the data folder. The catalog, a part of it, records which objects
the buckets that are folders contained when thawd last looked.
"""

from __future__ import annotations

import contextlib
import time

from thawd.config import Settings
from thawd.server.port_and_folder_locks import StartError
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.objects.remote import BucketStores, require_library
from thawd.stores.schema import open_state
from thawd.stores.tables.access import AwsAccess, Tables, require_libraries
from thawd.stores.threads import PATIENCE_S
from thawd.system import folders


class StoreSubsystem:
    """The stores of one server. Missing folders are created when the stores are opened.

    Args:
        settings: the configuration.
        closing: closes open resources when the server ends.

    Attributes:
        state: the state file.
        objects: the catalog of objects.
        tables: all tables, both those in files and remote ones.
        buckets: the remote buckets.
        patience_s: when the server stops, longest wait for all remote tables and buckets together, seconds.

    Raises:
        StartError: a folder cannot be created.
        StoreError: a store cannot be used, or a library for it is not installed.
    """

    def __init__(self, settings: Settings, *, closing: contextlib.ExitStack) -> None:
        self.patience_s = PATIENCE_S
        data = settings.server.data
        own = {data / "logs": 0o700, data / "tables": 0o700}
        for folder, mode in ({bucket.path: 0o777 for bucket in settings.buckets.values()} | own).items():
            try:
                folders.make(folder, mode=mode)
            except OSError as error:
                raise StartError(f"the folder {folder} cannot be created: {error.strerror}") from error
        self.state = open_state(data / "thawd.db")
        closing.callback(self.state.close)
        self.objects = ObjectCatalog(self.state)
        require_libraries(settings.tables)
        self.tables = Tables(settings.tables)
        require_library(settings.remote_buckets)
        self.buckets = BucketStores(settings.remote_buckets)
        closing.callback(self._close_elsewhere)

    def _close_elsewhere(self) -> None:
        until = time.monotonic() + self.patience_s
        self.tables.close(until=until)
        self.buckets.close(until=until)

    def use_aws(self, access: AwsAccess) -> None:
        """Use `access` for AWS tables and buckets whose URL names no endpoint or profile."""
        self.tables.aws = self.buckets.aws = access

    async def count_table(self, name: str) -> int:
        """Number of items in a table.

        Raises:
            ResourceNotFoundException: there is no such table (404).
            StoreError: the table cannot be read.
        """
        return await (await self.tables.get(name)).count()
