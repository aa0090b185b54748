"""Text for XML, in the answers of all AWS services that send it."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

# Source: XML 1.0, 2.2 "Characters".
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def xml_text(value: str) -> str:
    """The text `value` escaped for XML; characters that XML 1.0 does not allow become U+FFFD."""
    clean = _NOT_XML.sub("\ufffd", value)
    return escape(clean, {"\r": "&#13;"}).encode("utf-8", "replace").decode()
