"""Reads the ``[cluster]`` table, and checks that the rest of the configuration can be shared by several machines."""

from __future__ import annotations

from collections.abc import Mapping

from thawd.config import kinds
from thawd.config.findings import Findings, one_of
from thawd.config.options import cluster as options
from thawd.config.sections.reader import Reader
from thawd.config.settings import ClusterSettings, Settings

_PATH = ("cluster",)
_VARIABLES = {"name": options.NAME_VARIABLE, "key": options.KEY_VARIABLE, "address": options.ADDRESS_VARIABLE}


def read_cluster(
    document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]
) -> ClusterSettings | None:
    """Read the ``[cluster]`` table; None if there is none, or if it has a mistake, which has been reported."""
    if "cluster" not in document:
        return None
    before = len(reader.findings.problems())
    table = reader.mapping(document["cluster"], path=_PATH, allowed="a table of options")
    for name, variable in _VARIABLES.items():
        if environ.get(variable):
            table = {**table, name: environ[variable]}
    values = reader.table(table, path=_PATH, known=options.CLUSTER)
    if "address" in values:
        values["address"] = _split(values["address"])
    machines = {}
    for name, address in dict(values.get("machines") or {}).items():
        if not options.MACHINE_NAME.accepts(name):
            found = f"the name {kinds.spell(name)}"
            reader.findings.add((*_PATH, "machines", name), found=found, allowed=options.MACHINE_NAME.allowed)
        elif reader.accepts(options.ADDRESS, address, path=(*_PATH, "machines", name)):
            machines[name] = _split(str(address))
    values["machines"] = machines
    for name in ("certificate", "authority"):
        if name in values:
            values[name] = reader.absolute(values[name])
    if len(reader.findings.problems()) > before:
        return None
    cluster = ClusterSettings(**values)
    _check(cluster, reader.findings, is_list="machines" in table)
    return cluster if len(reader.findings.problems()) == before else None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check(cluster: ClusterSettings, findings: Findings, *, is_list: bool) -> None:
    if is_list:
        _check_list(cluster, findings)
    if (cluster.certificate is None) != (cluster.authority is None):
        findings.add((*_PATH, "certificate"), found="only one of the two", allowed="certificate and authority together")
    hosts = [host for host, _ in (cluster.machines.values() if is_list else (cluster.address,))]
    has_tls = cluster.certificate is not None or not cluster.key  # without a key, `thawd cluster join` gets both
    if not all(map(kinds.is_loopback, hosts)) and not has_tls and not cluster.unencrypted:
        findings.add(
            (*_PATH, "certificate"),
            found="no certificate, though requests are sent over the network",
            allowed="certificate and authority, or unencrypted = true if nobody else can reach the network",
        )


def _check_list(cluster: ClusterSettings, findings: Findings) -> None:
    for option in options.CLUSTER:
        if option.name in {"name", "key"} and not getattr(cluster, option.name):
            findings.add((*_PATH, option.name), found="nothing", allowed=option.kind.allowed)
    if cluster.name and cluster.name not in cluster.machines:
        allowed = one_of(cluster.name, cluster.machines, what="machines of this cluster")
        findings.add((*_PATH, "name"), found=kinds.spell(cluster.name), allowed=allowed)


def check_shared(settings: Settings, findings: Findings) -> None:
    """Report what several machines cannot share: data on the disk of one of them, limits that cannot be divided."""
    cluster = settings.cluster
    if cluster is None:
        return
    if not cluster.machines and settings.server.state is None:
        allowed = "a list of all machines, or server.state, the database in which they find each other"
        findings.add((*_PATH, "machines"), found="nothing", allowed=allowed)
    if not cluster.machines:
        _check_leader(settings, findings)
    for name in settings.buckets:
        allowed = 'a url such as "s3://bucket": a folder belongs to one machine of the cluster'
        findings.add(("buckets", name), found="a folder", allowed=allowed)
    for name, table in settings.tables.items():
        if table.path is not None:
            allowed = "a url of a PostgreSQL or DynamoDB table: a file belongs to one machine of the cluster"
            findings.add(("tables", name), found="a table in a file", allowed=allowed)
    for name, function in settings.functions.items():
        reserved = function.reserved_concurrency
        if reserved is not None and 0 < reserved < len(cluster.machines):
            allowed = f"0, or at least {len(cluster.machines)}: one for each machine of the cluster"
            findings.add(("functions", name, "reserved_concurrency"), found=str(reserved), allowed=allowed)
    for name in settings.provisioned_schedules:
        allowed = "no schedule in a cluster: use provisioned_concurrency"
        findings.add(("functions", name, "provisioned_schedule"), found="a schedule", allowed=allowed)


def _check_leader(settings: Settings, findings: Findings) -> None:
    """Report sources whose progress another machine could not continue."""
    if settings.server.durability != "cluster":
        for name in settings.schedules:
            allowed = 'server.durability = "cluster": otherwise runs would be lost with the machine that leads'
            findings.add(("schedules", name), found='a schedule with server.durability = "machine"', allowed=allowed)
    for name, bucket in settings.remote_buckets.items():
        if bucket.notify and bucket.notifications is None:
            allowed = "notifications, a queue: only one machine would know which objects a listing has found already"
            findings.add(("buckets", name, "notify"), found="a bucket that is listed", allowed=allowed)
