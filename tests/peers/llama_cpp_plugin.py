"""A plugin for llama.cpp's tests: their server has OpenAI's routes without `/v1`, too; ours has them with it only."""

from typing import Any

OPENAI = ("/chat/completions", "/completions", "/models", "/responses")


def pytest_configure() -> None:
    """Changes where requests go, and nothing that is asserted."""
    from utils import ServerProcess  # type: ignore[import-not-found]

    make_url = ServerProcess.make_url

    def with_version(self: Any, path: str, *rest: Any, **named: Any) -> str:
        url: str = make_url(self, f"/v1{path}" if path in OPENAI else path, *rest, **named)
        return url

    ServerProcess.make_url = with_version
