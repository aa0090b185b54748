"""`thawd.gateway.role_keys`: which keys requests may be signed with, and whose they are."""

from __future__ import annotations

from thawd.gateway.role_keys import RoleKeys


def keys(role: str = "arn:aws:iam::000000000000:role/path/to/worker") -> RoleKeys:
    return RoleKeys({"AKIA": "configured"}, role_of=lambda function: role)


def test_each_function_has_the_same_keys_for_one_run_of_the_server_and_no_other_has_them() -> None:
    one = keys()
    first, other = one.credentials("f"), one.credentials("g")
    assert one.credentials("f") == first
    assert len({first.access_key, other.access_key, keys().credentials("f").access_key}) == 3
    assert (one[first.access_key], one["AKIA"]) == (first.secret, "configured")
    assert sorted(one) == sorted(["AKIA", first.access_key, other.access_key])
    assert keys().get(first.access_key) is None


def test_only_a_functions_key_needs_its_token() -> None:
    one = keys()
    made = one.credentials("f")
    assert one.has_token("AKIA", None)
    assert one.has_token(made.access_key, made.token)
    assert not one.has_token(made.access_key, None)
    assert not one.has_token(made.access_key, one.credentials("g").token)


def test_a_key_belongs_to_the_role_of_its_function() -> None:
    one = keys()
    identity = one.identity(one.credentials("f").access_key)
    assert identity is not None
    assert identity.arn == "arn:aws:sts::000000000000:assumed-role/worker/f"
    assert identity.user_id.startswith("AROA")
    assert identity.user_id.endswith(":f")
    assert one.identity("AKIA") is None
    unknown = keys(role="")
    named = unknown.identity(unknown.credentials("f").access_key)
    assert named is not None
    assert named.role == "f-role"


def test_credentials_do_not_show_their_secrets() -> None:
    made = keys().credentials("f")
    assert made.secret not in repr(made)
    assert made.token not in repr(made)
