"""Refusals of the emulated OSS, with the real service's wording."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from xml.sax.saxutils import escape

REQUEST_ID = "5C3D9175B6FC201293AD0000"


class OssRefusal(Exception):
    """A response that is an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = headers

    def body(self, host: str) -> bytes:
        """Return the response's body."""
        fields = {"Code": self.code, "Message": self.message, "RequestId": REQUEST_ID, "HostId": host}
        inner = "".join(
            f"  <{name}>{escape(value)}</{name}>\n" for name, value in {**fields, **self.details}.items()
        )
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>\n{inner}</Error>\n'.encode()
