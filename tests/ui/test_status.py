"""The status tab and the banner: figures, plots, and what is told when the server or its shards go away."""

import re
from typing import Any

from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer


def busy(stats: dict[str, Any]) -> None:
    """One more second of a busy server."""
    stats.update(running=3, waiting=2, kv_blocks_used=512, kv_blocks_cached=1024, restarts=1)
    stats["tokens_generated_total"] += 120
    stats["tokens_prompt_total"] += 200
    stats["prefix_cache_hit_tokens_total"] += 50
    stats["requests_total"]["success"] += 1
    stats["last_step"] = {"upload_ms": 0.25, "forward_ms": 12.5, "sample_ms": 1.25, "download_ms": 0.5}


class Seconds:
    """The page's clock, which only this moves: a second is exactly one sample of the server's figures."""

    def __init__(self, page: Page, server: ScriptedServer) -> None:
        self._page = page
        self._server = server
        page.clock.install(time=0)
        page.clock.pause_at(1_000)
        page.reload()
        self._wait_for_sample()

    def next(self) -> None:
        """One more sample."""
        self._server.stats["steps_total"] += 1
        self._page.clock.run_for(1_000)
        self._wait_for_sample()

    def _wait_for_sample(self) -> None:
        facts = self._page.locator("#facts")
        expect(facts).to_contain_text(f"Steps{self._server.stats['steps_total']}Preemptions")


def test_shows_what_the_server_does(page: Page, server: ScriptedServer) -> None:
    server.on_stats = busy
    expect(page.locator("#pill")).to_have_text("3 running, 2 waiting")
    page.locator("#pill").click()
    expect(page.get_by_role("tab", name="Status")).to_have_attribute("aria-selected", "true")
    plots = page.locator(".plot")
    expect(plots.filter(has_text="KV cache")).to_contain_text("25.0 %")
    expect(plots.filter(has_text="KV cache")).to_contain_text("prefix cache 50.0 %")
    expect(plots.filter(has_text="waiting")).to_contain_text("waiting 2")
    expect(plots.filter(has_text="Step time")).to_contain_text("14.5 ms")
    expect(plots.filter(has_text="Step time")).to_contain_text("forward 12.5")
    expect(plots.filter(has_text="Prefix hits")).to_contain_text("25.0 % of all prompt tokens")
    expect(page.locator("#facts")).to_contain_text("Shard restarts1")
    expect(plots.first.locator(".line")).to_have_attribute("d", re.compile("L.*L"))


def drafting(stats: dict[str, Any]) -> None:
    """One more second of a server that drafts."""
    stats["drafts_total"] += 10
    stats["drafted_tokens_total"] += 40
    stats["accepted_tokens_total"] += 25


def test_shows_drafts_where_tokens_are_drafted(page: Page, server: ScriptedServer) -> None:
    page.get_by_role("tab", name="Status").click()
    plot = page.locator(".plot").filter(has_text="Right drafts")
    expect(page.locator(".plot").filter(has_text="Prefix hits")).to_be_visible()
    expect(plot).to_be_hidden()
    server.on_stats = drafting
    expect(plot).to_be_visible()
    expect(plot).to_contain_text("62.5 % right, 3.5 tokens a step")


def test_shows_each_replica_where_there_are_several(page: Page, server: ScriptedServer) -> None:
    one = {"ready": True, "running": 3, "waiting": 1, "kv_blocks_used": 256, "kv_blocks_total": 1024}
    page.get_by_role("tab", name="Status").click()
    facts = page.locator("#facts")
    expect(facts).to_contain_text("Shard restarts")
    expect(facts).not_to_contain_text("Replica")
    server.stats["replicas"] = [one, {**one, "ready": False}]
    expect(facts).to_contain_text("Replica 03 running, 1 waiting, 25.0 % of its cache")
    expect(facts).to_contain_text("Replica 1restarting")


def test_tells_that_shards_restart_and_that_they_are_back(page: Page, server: ScriptedServer) -> None:
    expect(page.locator("#pill")).to_have_text("Ready")
    server.stats.update(status="restarting", status_reason="shard 1 stopped answering")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("The shards are restarting")
    expect(banner).to_contain_text("shard 1 stopped answering")
    expect(page.locator("#pill")).to_have_text("Restarting")
    server.stats.update(status="ready", status_reason=None)
    expect(banner).to_contain_text("The server is back after")
    page.get_by_role("tab", name="Status").click()
    events = page.locator("#events li")
    expect(events.nth(0)).to_contain_text("Ready after")
    expect(events.nth(1)).to_contain_text("Shards are restarting")


def test_tells_that_the_server_is_gone_and_back(page: Page, server: ScriptedServer) -> None:
    page.get_by_role("tab", name="Status").click()
    expect(page.locator("#facts")).to_contain_text("penstock/demo")
    server.stop()
    expect(page.locator("#banner")).to_contain_text("The server cannot be reached")
    expect(page.locator("#status")).to_have_class("status stale")
    server.start()
    expect(page.locator("#banner")).to_contain_text("The server is back after")
    expect(page.locator("#status")).to_have_class("status")


def test_rates_are_per_second_and_not_negative_when_a_counter_starts_again(
    page: Page, server: ScriptedServer
) -> None:
    page.get_by_role("tab", name="Status").click()
    rate = page.locator(".plot").filter(has_text="Generated").locator("b")
    seconds = Seconds(page, server)
    for total, expected in [(10_000, None), (10_120, "120"), (10_120, "0"), (5, "0"), (65, "60")]:
        server.stats["tokens_generated_total"] = total
        seconds.next()
        if expected is not None:
            expect(rate).to_have_text(expected)
