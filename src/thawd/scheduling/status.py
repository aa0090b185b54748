"""The entry of each function in ``/_thawd/status``: its state, kind of start, environments and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.starts.origin import Origin
from thawd.invocation import StartKind
from thawd.scheduling.core_admission import CORE
from thawd.scheduling.function_entries import FunctionEntry, VersionEntry
from thawd.scheduling.pool import Pool
from thawd.scheduling.tenant_pools import TenantPools
from thawd.telemetry.metrics import FunctionMetrics

NO_ENVIRONMENTS: Mapping[str, int] = {"idle": 0, "busy": 0, "starting": 0}


def document(family: FunctionEntry, spawner: Spawner) -> dict[str, Any]:
    """Return a function's status: that of ``$LATEST``, the counts over all versions, and its published versions.

    Args:
        family: the function.
        spawner: knows how environments of each version start.
    """
    status = {**_of_version(family.latest, family.metrics, spawner), **family.metrics.summary()}
    if family.published:
        published = family.published.items()
        status["versions"] = {number: _of_version(entry, family.metrics, spawner) for number, entry in published}
    return status


def _of_version(entry: VersionEntry, metrics: FunctionMetrics, spawner: Spawner) -> dict[str, Any]:
    pool = entry.pool
    origin = None if pool is None else spawner.origin(pool.version)
    return {
        "state": entry.state,
        "reason": entry.reason,
        # Of a version whose init failed, nothing is known about starts that succeed.
        "start": None if origin is None or entry.state == "Failed" else origin.start,
        "start_reason": None if origin is None else origin.why,
        "start_reasons": [] if origin is None else list(map(asdict, origin.obstacles)),
        "template_init_ms": None if origin is None or origin.init_ms is None else round(origin.init_ms, 3),
        "snapshot": None if origin is None else _snapshot(metrics, origin),
        "environments": dict(NO_ENVIRONMENTS) if pool is None else pool.counts(),
        "processes": [] if pool is None else _processes(pool),
        "keep_alive": None if pool is None else {"policy": entry.function.keep_alive, **pool.keeping()},
        "waiting": 0 if pool is None else pool.waiting,
        "spare": pool is not None and pool.has_spare,
        "spare_refused": None if origin is None else origin.spare_refused,
        "paths": None if pool is None else pool.version.paths,
        "paths_reason": None if pool is None else pool.version.why_real or None,
        "tenants": pool.tenants if isinstance(pool, TenantPools) else None,
        "cores_each": None if pool is None or pool.share.load is None else pool.share.load / CORE,
    }


def _processes(pool: Pool) -> list[int]:
    """Return the process ids of all environments that are ready."""
    environments = pool.of_all_tenants() if isinstance(pool, TenantPools) else pool.all()
    return [environment.child.pid for environment in environments if environment.child is not None]


def _snapshot(metrics: FunctionMetrics, origin: Origin) -> dict[str, Any]:
    """Describe the version's image, and add the median duration of the function's restores, over all versions."""
    thaws = metrics.starts.get(StartKind.THAW)
    return {**origin.describe(), "restore_p50_ms": None if thaws is None else round(thaws.quantile_ms(0.5), 3)}
