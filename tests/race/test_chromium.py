"""The page in a real browser: charts drawn, a silent console, nothing fetched."""

import itertools
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from tests.race.made import race, trials

from agdopt.race.record import append
from agdopt.race.report import write

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's package chromium"),
]

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage
  --disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe"""
# What a reader sees of every drawing: its size, and how many of its marks have a length.
DRAWN = """[...document.querySelectorAll('figure svg')].map(svg => [
  svg.getBoundingClientRect().width, svg.getBoundingClientRect().height,
  [...svg.querySelectorAll('[class^="of-"] path, [class^="of-"] use')].filter(
    e => e.getBBox().width + e.getBBox().height > 0).length])"""


OPACITY = """[...document.querySelectorAll('svg [class^=of-]')].map(
  e => [e.className.baseVal, getComputedStyle(e).opacity])"""


class Browser:
    """The DevTools protocol over a pipe: a JSON object and a NUL for each message."""

    def __init__(self, profile: Path) -> None:
        theirs, self.send = os.pipe()
        self.receive, ours = os.pipe()
        command = ["chromium", *FLAGS.split(), f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{ours}', "bash", *command],
            pass_fds=(theirs, ours), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self.patience = threading.Timer(60, self.process.kill)
        self.patience.start()
        self.input, self.ids, self.session = os.fdopen(self.receive, "rb"), itertools.count(), None
        self.events: list[dict] = []

    def read(self) -> dict:
        message = bytearray()
        while (byte := self.input.read(1)) != b"\0":
            assert byte, "the browser is gone"
            message += byte
        return json.loads(message)

    def call(self, method: str, **params) -> dict:
        id_ = next(self.ids)
        session = {"sessionId": self.session} if self.session else {}
        os.write(
            self.send, json.dumps({"id": id_, "method": method, "params": params, **session}).encode() + b"\0"
        )
        while (message := self.read()).get("id") != id_:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def open(self, url: str) -> list[dict]:
        """Everything that happened until the page was loaded, and a moment more."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(self.read())
        self.value("new Promise(done => setTimeout(done, 300))")
        return self.events

    def value(self, expression: str):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def close(self) -> None:
        self.patience.cancel()
        os.close(self.send)
        self.input.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


def stored(folder):
    for r in race():
        append(folder / "records.jsonl", r)
    for r in trials():
        append(folder / "trials.jsonl", r)
    return write(folder, target=0.88)


def requests(events):
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [u for u in urls if not u.startswith("data:")]


def complaints(events):
    methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    return [e["params"] for e in events if e["method"] in methods]


def test_the_page_draws_says_and_fetches(browser, tmp_path):
    report = stored(tmp_path)
    page = (tmp_path / "report.html").as_uri()
    events = browser.open(page)
    assert requests(events) == [page]
    assert complaints(events) == []
    drawings = browser.value(DRAWN)
    assert len(drawings) == len(list(tmp_path.glob("charts/*.svg"))) == 8
    assert all(width > 300 and height > 100 and marks > 0 for width, height, marks in drawings), drawings
    assert browser.value("document.querySelectorAll('tbody tr[data-of]').length") == len(report.entrants)
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")


def test_pointing_at_an_optimizer_leaves_it_and_fades_the_others(browser, tmp_path):
    stored(tmp_path)
    browser.open((tmp_path / "report.html").as_uri())
    x, y = browser.value(
        "(r => [r.x + 9, r.y + 9])(document.querySelector('.says li').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.value("new Promise(done => setTimeout(done, 400))")
    place = browser.value("document.querySelector('.says li').dataset.of")
    seen = browser.value(OPACITY)
    assert {opacity for name, opacity in seen if name == f"of-{place}"} == {"1"}
    assert {opacity for name, opacity in seen if name != f"of-{place}"} == {"0.12"}


def test_this_browser_would_have_told(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>nothing.there</script>')
    events = browser.open(page.as_uri())
    assert requests(events) == [page.as_uri(), "http://127.0.0.1:9/x.png"]
    assert len(complaints(events)) >= 2
