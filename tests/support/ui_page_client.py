"""HTTP client for the page: responses, and the tags of a page."""

from __future__ import annotations

import http.client
from html.parser import HTMLParser

from slackwater.ui.page_server import UiServer


class PageResponse:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def text(self) -> str:
        return self.body.decode()


def fetch_page(server: UiServer, path: str, **headers: str) -> PageResponse:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    client.request("GET", path, headers={n.replace("_", "-"): v for n, v in headers.items()})
    answer = PageResponse(client.getresponse())
    client.close()
    return answer


class HtmlTagChecker(HTMLParser):
    """Parser for the tags of a page with their attributes. Fails if a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
