"""Reads the URLs of remote tables and buckets: inserts environment variables, reports mistakes, and hides secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from thawd.config.findings import Findings, KeyPath, one_of
from thawd.resources import REGION, StoreUrl

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
# These expressions are greedy on purpose, so that they match a whole password even if it contains an unencoded slash
# or @. Otherwise messages would show a part of it.
_PASSWORD = re.compile(r"(?<=://)([^:@/?#]*:)(.*)(@)", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&])((?:ssl)?password=)([^&#]*)", re.IGNORECASE)
_HIDDEN = "***"

_POSTGRESQL = ("postgresql", "postgres")
_TABLE_SCHEMES = (*_POSTGRESQL, "dynamodb")
_DYNAMODB_PARAMETERS = ("region", "endpoint", "profile")
# Source: DynamoDB API reference, CreateTable: TableName.
_DYNAMODB_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
# PostgreSQL shortens longer names, so that two different names could become the same.
# Source: PostgreSQL documentation, "Identifiers and Key Words".
_LONGEST_IDENTIFIER_BYTES = 63
_BUCKET_PARAMETERS = {
    "s3": ("region", "endpoint", "path_style", "profile", "anonymous"),
    "gs": ("endpoint", "anonymous"),
    "az": ("account", "endpoint", "anonymous"),
}
REGISTRY = "oci"
"""Scheme of the URL of a repository in a registry of container images."""
# Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md, "Pulling manifests".
_REPOSITORY = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
    r"(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+"
)
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")


def read_table_url(
    written: str, findings: Findings, *, path: KeyPath, table: str, environ: Mapping[str, str]
) -> StoreUrl | None:
    """Return the URL of a remote table; None: it has a mistake, which has been reported.

    Args:
        written: text of the option in the file.
        findings: collects the mistakes.
        path: key path of the option.
        table: name of the table in the file; the URL may name another one.
        environ: environment variables that the text may name.
    """
    url = read_url(written, findings, path=path, schemes=_TABLE_SCHEMES, environ=environ)
    if url is None:
        return None
    parts = urlsplit(url.text)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if url.scheme == "dynamodb":
        if not _DYNAMODB_NAME.fullmatch(parts.netloc) or parts.path.strip("/"):
            findings.add(path, found=f'"{url}"', allowed='a URL such as "dynamodb://TABLE?region=eu-west-1"')
            return None
        return url if check_parameters(parameters, findings, path=path, known=_DYNAMODB_PARAMETERS) else None
    for what in ("table", "schema"):
        name = parameters.get(what, table if what == "table" else "public")
        if not 1 <= len(name.encode()) <= _LONGEST_IDENTIFIER_BYTES or "\0" in name:
            allowed = f"a name of 1 to {_LONGEST_IDENTIFIER_BYTES} bytes; the URL can set one with ?{what}=NAME"
            findings.add(path, found=f"a {what} with a name of {len(name.encode())} bytes", allowed=allowed)
            return None
    return url


def read_bucket_url(
    written: str, findings: Findings, *, path: KeyPath, environ: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return those fields of `thawd.resources.RemoteBucket` that a bucket's URL contains.

    None means that the URL has a mistake, which has been reported.
    """
    url = read_url(written, findings, path=path, schemes=tuple(_BUCKET_PARAMETERS), environ=environ)
    if url is None:
        return None
    parts = urlsplit(url.text)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not check_parameters(parameters, findings, path=path, known=_BUCKET_PARAMETERS[url.scheme]):
        return None
    prefix = unquote(parts.path).strip("/")
    if not _BUCKET_NAME.fullmatch(parts.netloc) or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        findings.add(path, found=f'"{url}"', allowed='a URL such as "s3://bucket/prefix"')
        return None
    if url.scheme == "az" and "account" not in parameters and not environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        allowed = "a URL with ?account=NAME, or the variable AZURE_STORAGE_ACCOUNT_NAME"
        findings.add(path, found=f'"{url}"', allowed=allowed)
        return None
    for name in ("anonymous", "path_style"):
        if parameters.get(name, "true") not in ("true", "false"):
            findings.add(path, found=f'{name}="{parameters[name]}"', allowed="true or false")
            return None
    aws_region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") if url.scheme == "s3" else None
    return {
        "url": url,
        "bucket": parts.netloc,
        "prefix": f"{prefix}/" if prefix else "",
        "region": parameters.get("region") or aws_region or REGION,
        "parameters": parameters,
    }


def read_registry_url(
    written: str, findings: Findings, *, path: KeyPath, environ: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return those fields of `thawd.resources.RemoteBucket` that the URL of a repository in a registry contains.

    None means that the URL has a mistake, which has been reported.
    """
    url = read_url(written, findings, path=path, schemes=(REGISTRY,), environ=environ)
    if url is None:
        return None
    name = url.text.removeprefix(f"{REGISTRY}://")
    if not _REPOSITORY.fullmatch(name):
        allowed = 'a URL such as "oci://registry.example:5000/team/snapshots", without a tag; lower-case letters'
        findings.add(path, found=f'"{url}"', allowed=allowed)
        return None
    return {"url": url, "bucket": name}


def read_url(
    written: str, findings: Findings, *, path: KeyPath, schemes: tuple[str, ...], environ: Mapping[str, str]
) -> StoreUrl | None:
    """Return a URL with one of `schemes`, with environment variables inserted; None: a mistake has been reported."""
    missing = [name for name in _VARIABLE.findall(written) if not environ.get(name)]
    if missing:
        found = f"{', '.join(f'${{{name}}}' for name in missing)}, but no such environment variable is set"
        findings.add(path, found=found, allowed="names of environment variables that are set")
        return None
    whole = _VARIABLE.fullmatch(written)
    if whole is not None:
        text = environ[whole[1]]
        shown = _without_passwords(text)
    else:
        text = _VARIABLE.sub(lambda match: quote(environ[match[1]], safe=""), written)
        shown = _without_passwords(written)
    url = StoreUrl(text=text, shown=shown, secrets=_secrets(text, written, environ))
    known = ", ".join(f"{scheme}://" for scheme in schemes)
    if "://" not in text:
        findings.add(path, found="a text without ://", allowed=f"a URL that begins with one of {known}")
        return None
    if url.scheme not in schemes:
        allowed = one_of(url.scheme, schemes, what="schemes")
        findings.add(path, found=f'the scheme "{url.scheme}"', allowed=allowed)
        return None
    try:
        is_url = not urlsplit(text).fragment and text.isprintable()
    except ValueError:
        is_url = False
    if not is_url:
        allowed = "a URL; write characters such as # / @ in a password as %23 %2F %40, or insert it with ${NAME}"
        findings.add(path, found=f'"{shown}"', allowed=allowed)
        return None
    return url


def check_parameters(
    parameters: Mapping[str, str], findings: Findings, *, path: KeyPath, known: tuple[str, ...]
) -> bool:
    """Return whether all parameters of a URL are known, and report the first unknown one."""
    for name in parameters:
        if name not in known:
            findings.add(path, found=f'the parameter "{name}"', allowed=one_of(name, known, what="parameters"))
            return False
    return True


def _without_passwords(text: str) -> str:
    def hide(match: re.Match[str]) -> str:
        password = match[2]
        shown = password if _VARIABLE.fullmatch(password) else _HIDDEN  # `${NAME}` is not secret, only its value
        return match[1] + shown + (match[3] if len(match.groups()) > 2 else "")

    return _PASSWORD_PARAMETER.sub(hide, _PASSWORD.sub(hide, text))


def _secrets(text: str, written: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the texts in a URL that messages must not show: passwords, and values of environment variables.

    Each is returned percent-encoded and decoded, the longest first, so that replacing a short one cannot spoil a longer
    one that contains it.
    """
    found = {match[2] for pattern in (_PASSWORD, _PASSWORD_PARAMETER) for match in pattern.finditer(text)}
    if not _VARIABLE.fullmatch(written):
        found |= {environ[name] for name in _VARIABLE.findall(written)}
    found |= {unquote(secret) for secret in found} | {quote(secret, safe="") for secret in found}
    return tuple(sorted((secret for secret in found if secret), key=lambda secret: (-len(secret), secret)))
