"""Rules for all tables, independent of the store: which keys and items are allowed, and the messages of refusals.

A store returns an item as exactly the bytes that were put; this module only checks that they are a JSON object.
"""

from __future__ import annotations

import msgspec

from thawd.errors import InvalidParameterValueException

# Source: DynamoDB quotas: item size 400 KB; partition key 1 to 2,048 bytes.
MAX_ITEM_BYTES = 400 * 1024
MAX_KEY_BYTES = 2048


def check_key(key: str, *, table: str) -> None:
    """Refuse a key that tables do not allow.

    Raises:
        InvalidParameterValueException: the key is empty, too long or not text (HTTP 400).
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidParameterValueException(
            f"table {table}: the key {key!r} is not valid Unicode text ({error.reason}); remove surrogate characters"
        ) from None
    if not 1 <= size <= MAX_KEY_BYTES:
        raise InvalidParameterValueException(
            f"table {table}: the key has {size} bytes in UTF-8; 1 to {MAX_KEY_BYTES} are allowed"
        )


def item_text(item: bytes, *, table: str, key: str) -> str:
    """Check an item and return it as text.

    Raises:
        InvalidParameterValueException: the item is too large or not a JSON object (HTTP 400).
    """
    where = f"table {table}, key {key!r}"
    if len(item) > MAX_ITEM_BYTES:
        raise InvalidParameterValueException(
            f"{where}: the item has {len(item)} bytes; at most {MAX_ITEM_BYTES} are allowed. Store large data in a "
            "bucket"
        )
    try:
        value = msgspec.json.decode(item)
        text = item.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameterValueException(
            f"{where}: the item is not JSON in UTF-8 ({error}); it must be a JSON object such as {{}}"
        ) from None
    if not isinstance(value, dict):
        raise InvalidParameterValueException(
            f"{where}: the item is a JSON {_JSON_NAMES[type(value)]}; it must be a JSON object such as {{}}"
        )
    return text


_JSON_NAMES = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
