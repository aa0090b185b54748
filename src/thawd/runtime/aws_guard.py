"""Prevents botocore from reaching the real AWS under ``thawd up --aws``, with an import hook.

botocore before 1.31.0 does not support ``AWS_ENDPOINT_URL``, so the import hook makes botocore's sessions use the
endpoint in that variable. With any version, a request that would still go to AWS is refused before it is sent. A
request goes there if its client was created with an explicit endpoint or is configured to ignore the variable.

This module uses only the standard library of Python 3.9 and later, and imports nothing from thawd, because
`site/sitecustomize.py` loads it in programs that are not thawd's.

Source: AWS SDKs and tools reference guide, "Service-specific endpoints"; botocore's changelog, 1.31.0.
"""

import os
import sys
from typing import Any, Callable, Dict, Optional
from urllib.parse import urlsplit

SWITCH = "THAWD_AWS"
"""The environment variable that is ``local`` when thawd emulates AWS."""
_KNOWS_ENDPOINTS = (1, 31, 0)
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".aws.dev")
# Number of positional arguments of `create_client` before the endpoint: session, service, region, API version, use_ssl,
# verify.
_BEFORE_ENDPOINT = 6


def install() -> None:
    """Install the import hook if thawd emulates AWS."""
    if os.environ.get(SWITCH) != "local" or any(type(one).__name__ == _Hook.__name__ for one in sys.meta_path):
        return
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Hook())


class _Hook:
    """Finds the modules in `_CHANGES` by asking the other finders, and changes each after it has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        change = _CHANGES.get(name)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _after_execution(spec.loader, name, change)
                return spec
        return None


def _after_execution(loader: Any, name: str, change: Callable[[Any], None]) -> None:
    """Make `loader` call `change` after it has executed the module `name`.

    The loader of a zip file executes other modules, too; `change` is not called for these.
    """
    if hasattr(loader, "exec_module"):
        execute = loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            if module.__name__ == name:
                change(module)

        loader.exec_module = execute_and_change
        return
    # Before Python 3.10, the loaders of `zipimport` have only the method `load_module`.
    load = loader.load_module

    def load_and_change(fullname: str) -> Any:
        module = load(fullname)
        if fullname == name:
            change(module)
        return module

    loader.load_module = load_and_change


def _version() -> "tuple[int, ...]":
    text = str(getattr(sys.modules.get("botocore"), "__version__", ""))
    try:
        return tuple(int(part) for part in text.split(".")[:3])
    except ValueError:
        return _KNOWS_ENDPOINTS


def _endpoint(service: Any) -> Optional[str]:
    own = "AWS_ENDPOINT_URL_%s" % str(service).upper().replace("-", "_")
    return os.environ.get(own) or os.environ.get("AWS_ENDPOINT_URL")


def _give_endpoint(owner: Any, name: str) -> None:
    """Make the method `name` of `owner`, which creates clients, use the endpoint in AWS_ENDPOINT_URL by default."""
    if _version() >= _KNOWS_ENDPOINTS:
        return
    make = getattr(owner, name)

    def create_client(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("endpoint_url") is None and len(args) <= _BEFORE_ENDPOINT:
            service = args[1] if len(args) > 1 else kwargs.get("service_name")
            kwargs["endpoint_url"] = _endpoint(service)
        return make(*args, **kwargs)

    setattr(owner, name, create_client)


def _follow_variables(module: Any) -> None:
    """Make credentials from environment variables follow these variables.

    A copy of a frozen process gets keys of the server that runs now, but a client that init created has the keys of the
    server that ran then.
    """
    plain, load = module.Credentials, module.EnvProvider.load
    properties = {name: _variable(name, variable) for name, variable in _CREDENTIALS.items()}
    current = type("CurrentCredentials", (plain,), properties)

    def load_and_follow(self: Any) -> Any:
        found = load(self)
        if type(found) is plain and found.access_key == os.environ.get("AWS_ACCESS_KEY_ID"):
            found.__class__ = current
        return found

    module.EnvProvider.load = load_and_follow


def _variable(name: str, variable: str) -> Any:
    """A property with the value of an environment variable; without the variable, the value from the beginning."""

    def get(self: Any) -> Any:
        return os.environ.get(variable) or self.__dict__.get(name)

    def put(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return property(get, put)


def _refuse_requests_to_aws(owner: Any) -> None:
    """Make the method `send` of the class `owner` refuse a request that would go to AWS."""
    send = owner.send

    def checked(self: Any, request: Any) -> Any:
        host = urlsplit(request.url).hostname or ""
        if ("." + host).endswith(_AWS):
            raise _refusal(host)
        return send(self, request)

    owner.send = checked


def _refusal(host: str) -> Exception:
    from botocore import exceptions

    class LeavesForAwsError(exceptions.BotoCoreError):  # type: ignore[misc]
        fmt = (
            "thawd up --aws: this request was not sent, because it would have gone to the real AWS ({host}). The "
            "client was created with its own endpoint, or AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set. Remove that, or "
            "run `thawd up --aws-real` to use your AWS account"
        )

    return LeavesForAwsError(host=host)


_CREDENTIALS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
}
_CHANGES: Dict[str, Callable[[Any], None]] = {
    "botocore.credentials": _follow_variables,
    "botocore.session": lambda module: _give_endpoint(module.Session, "create_client"),
    "botocore.httpsession": lambda module: _refuse_requests_to_aws(module.URLLib3Session),
    "aiobotocore.session": lambda module: _give_endpoint(module.AioSession, "_create_client"),
    "aiobotocore.httpsession": lambda module: _refuse_requests_to_aws(module.AIOHTTPSession),
}
