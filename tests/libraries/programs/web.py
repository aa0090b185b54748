"""fastapi, httpx, lxml and pillow: an application called through a new event loop after the thaw."""

from __future__ import annotations

import asyncio
import hashlib
import io
from typing import Any

import fastapi
import httpx
import lxml.etree
import scenario
from PIL import Image, ImageFilter
from pydantic import BaseModel


class Order(BaseModel):
    """The contents of a request."""

    item: str
    count: int


class Web:
    """An application, its client, a parsed document and a picture."""

    def __init__(self) -> None:
        self._application = fastapi.FastAPI()
        self._application.post("/orders/{number}")(self._order)
        self._client = httpx.Client(base_url="http://127.0.0.1:1")
        rows = "".join(f"<row id='{at}'><v>{at * at}</v></row>" for at in range(500))
        self._document = lxml.etree.fromstring(f"<rows>{rows}</rows>")
        self._picture = Image.radial_gradient("L").resize((120, 90))

    def answer(self, number: int) -> Any:
        file = io.BytesIO()
        picture = self._picture.rotate(number * 7).filter(ImageFilter.GaussianBlur(2))
        picture.save(file, "PNG")
        return {
            "http": asyncio.run(self._asked(number)),
            "xml": self._document.xpath(f"sum(row[@id mod {number + 2} = 0]/v)"),
            "picture": hashlib.sha256(Image.open(file).tobytes()).hexdigest(),
        }

    def exercise(self) -> None:
        try:
            self._client.get("/")  # no server listens there
        except httpx.ConnectError:
            pass
        else:
            raise AssertionError("something listens on port 1")
        self._client.close()

    async def _asked(self, number: int) -> Any:
        transport = httpx.ASGITransport(self._application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = await asyncio.gather(
                *(client.post(f"/orders/{at}", json={"item": "x", "count": number}) for at in range(4))
            )
            refused = await client.post("/orders/1", json={"item": "x", "count": "many"})
        return [answer.json() for answer in answers] + [refused.status_code]

    @staticmethod
    def _order(number: int, order: Order) -> dict[str, Any]:
        return {"number": number, "total": order.count * number, "item": order.item}


if __name__ == "__main__":
    scenario.main(lambda _options: Web())
