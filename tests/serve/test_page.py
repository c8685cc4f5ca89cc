"""The playground in a real browser: Playwright drives the system's Chromium, the service is the real one.

What the page shows is compared with what the host says offline.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from serve.place import until

import inlay
from inlay.base.load import load_tokenizer
from inlay.engine.alpha import alphas
from inlay.serve.app import Service, build
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Settings
from inlay.serve.keys import Key, Keys
from inlay.serve.limits import Limits
from inlay.serve.process import take_port, url_of
from inlay.serve.server import Server

playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser test needs chromium: apt-get install chromium")

TEXT = "😀 ana meets bob in lima <b>x</b><script>document.title='taken'</script> the film was very good"
PAIR, QUESTION = "a fine book", "who meets bob ?"
EVIL = "<img src=x onerror=document.title='taken'>"
TASKS: dict[str, tuple[str, str, list[str], dict[str, str]]] = {
    "tone": ("houlsby:size=4", "classification", ["bad", EVIL, "good"], {"text": "text"}),
    "names": ("houlsby:size=4", "tagging", ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], {"tokens": "words"}),
    "biased": ("adapterbias", "classification", ["no", "yes"], {"text": "text"}),
    "stars": ("lora:rank=2", "regression", ["value"], {"text": "text"}),
    "answers": ("houlsby:size=4", "qa", ["start", "end"], {"text": "question", "pair": "context"}),
    "same": ("bitfit", "classification", ["same", "other"], {"text": "a", "pair": "b"}),
    "topics": ("norms", "multilabel", [f"topic {i}" for i in range(9)], {"text": "text"}),
}
KEY = "open-sesame"
SHARES = "all => all.map(e => e.style.getPropertyValue('--share'))"
OUTLINE = "getComputedStyle(document.activeElement.closest('.chip') ?? document.activeElement).outline"
OUTSIDE = "[...document.querySelectorAll('.card *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"


@contextmanager
def running(service: Service) -> Iterator[str]:
    """A service on a port of its own."""
    with take_port("127.0.0.1", 0) as taken:
        server = Server(build(service), service.limits)
        thread = threading.Thread(target=server.run, args=([taken],), daemon=True)
        thread.start()
        end = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < end
            time.sleep(0.02)
        try:
            yield url_of(taken)
        finally:
            server.end()
            thread.join(30)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A tiny base with tasks of every kind, open and with a key; and a host that answers offline."""
    folder = tmp_path_factory.mktemp("page")
    base = tiny.save_text_model(folder / "base")
    library = inlay.Library(str(folder / "library"))
    offline = inlay.Host(base)
    for seed, (name, (method, task, labels, columns)) in enumerate(TASKS.items()):
        offline.add(name, method, labels=labels, task=task, seed=seed)
        tiny.shake(offline, name, seed=seed + 3)
        about = {"columns": columns, "metrics": {"validation": {"accuracy": 0.875}}, "parameters": {"adapter": 1234}}
        library.put(dataclasses.replace(offline.adapter(name), about=about))
    offline = inlay.Host(base)
    for name in TASKS:
        offline.load(library.get(name))
    host = inlay.Host(base)
    engine = Engine(host, library, Settings())
    catalogue: Any = None  # it is asked only when tasks are put and taken over HTTP
    key = Key("someone", frozenset({"predict"}), hashlib.sha256(KEY.encode()).digest())
    locked = Service(engine, catalogue, Keys([key]))
    small = Service(engine, catalogue, limits=Limits(characters=200))
    for name in TASKS:
        engine.serve(name, name)
    engine.start()
    services = running(Service(engine, catalogue)), running(locked), running(small)
    with services[0] as url, services[1] as with_key, services[2] as with_limits:
        yield SimpleNamespace(url=url, with_key=with_key, with_limits=with_limits, offline=offline, engine=engine)
    engine.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield found
        found.close()


@pytest.fixture
def opened(browser) -> Iterator[Any]:
    """Opens pages; whatever a page complains about, or fetches from elsewhere, fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(url: str, width: int = 1200, scheme: str = "light", expected: str = "^$") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        said = lambda text: None if re.search(expected, text) else complaints.append(text)  # noqa: E731
        page.on("console", lambda message: said(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(url) else complaints.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def ask(page: Any, text: str = TEXT, pair: str | None = PAIR, question: str | None = QUESTION) -> None:
    expect(page.locator(".chip")).to_have_count(len(TASKS) + 1)
    for field, value in (("#pair", pair), ("#question", question), ("#text", text)):
        if value is not None:
            page.fill(field, value)
    page.press("#text", "Enter")
    expect(page.locator("#status")).to_contain_text(" ms")


def card(page: Any, name: str) -> Any:
    return page.locator(f'.card[data-task="{name}"]')


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def offline(served: SimpleNamespace, name: str, given: Any = TEXT) -> dict[str, Any]:
    (answer,) = served.offline.predict([(name, given)])
    return answer


def test_all_tasks_answer_one_text(served, opened):
    page = opened(served.url)
    ask(page)
    expect(page.locator(".card")).to_have_count(len(TASKS))
    expect(page.locator("#status")).to_have_text(
        re.compile(rf"^{len(TASKS)} answers in \d+ ms · \d+ ms .*batch of \d+$")
    )
    for name, given in (("tone", TEXT), ("biased", TEXT), ("same", (TEXT, PAIR))):
        wanted = offline(served, name, given)
        expect(card(page, name).locator(".said")).to_have_text(f"{wanted['label']} {percent(wanted['score'])}")
        best_first = sorted(wanted["scores"].items(), key=lambda item: -item[1])
        shown = [f"{label}{percent(score)}" for label, score in best_first]
        expect(card(page, name).locator(".bars li")).to_have_text(shown)
    value = float(card(page, "stars").locator(".said").inner_text())
    assert value == pytest.approx(offline(served, "stars")["value"], rel=0.01, abs=1e-4)
    assert card(page, "topics").locator(".bars li").count() == 9
    card(page, "topics").get_by_text("3 more labels").click()
    expect(card(page, "topics").locator(".bars li").last).to_be_visible()


def test_bars_are_as_long_as_their_scores(served, opened):
    page = opened(served.url)
    ask(page)
    shares = (
        card(page, "tone").locator(".fill").evaluate_all("all => all.map(e => e.style.getPropertyValue('--share'))")
    )
    wanted = sorted(offline(served, "tone")["scores"].values(), reverse=True)
    assert [float(share) for share in shares] == pytest.approx(wanted, abs=1e-3)


def test_spans_and_answers_are_marked_where_they_are(served, opened):
    """Also behind a character that JavaScript counts as two."""
    page = opened(served.url)
    ask(page)
    spans = offline(served, "names")["spans"]
    assert len(spans) > 1, "or the comparison says nothing"
    assert spans[-1]["start"] > 0
    expect(card(page, "names").locator("mark")).to_have_text([s["text"] + s["label"] for s in spans])
    wanted = offline(served, "answers", {"question": QUESTION, "context": TEXT})
    assert wanted["answer"]
    expect(card(page, "answers").locator("mark")).to_have_text(wanted["answer"])
    assert card(page, "answers").locator(".text").inner_text() == TEXT


def test_tokens_are_shaded_by_alpha(served, opened):
    page = opened(served.url)
    ask(page)
    expect(page.locator("figure.alpha")).to_have_count(1)
    batch = served.offline.batch([TEXT])
    (alpha,) = alphas(served.offline, batch, ["biased"])
    assert alpha is not None
    tokens = load_tokenizer(served.offline.base).convert_ids_to_tokens(batch.ids.tolist())
    shown = card(page, "biased").locator(".token")
    expect(shown).to_have_text([token.removeprefix("##") for token in tokens])
    weights = alpha.abs().mean(0).tolist()
    words = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    low, high = min(weights[i] for i in words), max(weights[i] for i in words)
    shares = shown.evaluate_all("all => all.map(e => e.style.getPropertyValue('--share'))")
    assert [float(shares[i]) for i in words] == pytest.approx(
        [(weights[i] - low) / (high - low) for i in words], abs=2e-3
    )
    colours = shown.evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    deepest, faintest = (colours[words[[weights[i] for i in words].index(w)]] for w in (high, low))
    assert deepest != faintest
    expect(card(page, "biased").locator(".legend")).to_contain_text(f"{high:.3g}"[:4])


def test_html_is_shown_as_text(served, opened):
    page = opened(served.url)
    ask(page)
    assert (
        card(page, "names")
        .locator(".text")
        .evaluate("e => [...e.childNodes].map(n => n.firstChild ? n.firstChild.textContent : n.textContent).join('')")
        == TEXT
    )
    expect(card(page, "tone").get_by_text(EVIL, exact=False).first).to_be_visible()
    assert page.locator("main script, main img, main b").count() == 0
    assert page.title() == "Inlay"


def test_chips_choose_tasks_and_fields(served, opened):
    page = opened(served.url)
    expect(page.locator("#pair")).to_be_visible()
    page.get_by_role("checkbox", name="tone").check()
    page.get_by_role("checkbox", name="stars").check()
    expect(page.get_by_role("checkbox", name="All")).not_to_be_checked()
    expect(page.locator("#pair")).to_be_hidden()
    expect(page.locator("#question")).to_be_hidden()
    ask(page, pair=None, question=None)
    expect(page.locator(".card")).to_have_count(2)
    page.get_by_role("checkbox", name="answers").check()
    expect(page.locator("#question")).to_be_visible()
    page.get_by_role("button", name="Ask").click()
    expect(card(page, "answers")).to_contain_text("ask one above")
    page.get_by_role("checkbox", name="All").check()
    expect(page.get_by_role("checkbox", name="tone")).not_to_be_checked()
    page.get_by_role("button", name="Ask").click()
    expect(card(page, "same")).to_contain_text("give a second one above")


def test_the_keyboard_suffices(served, opened):
    page = opened(served.url)
    expect(page.locator(".chip")).to_have_count(len(TASKS) + 1)
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.name"))
        outline = page.evaluate(OUTLINE)
        assert "3px" in outline, order
    assert order[:4] == ["text", "pair", "question", f"All {len(TASKS)}"]
    page.keyboard.press("Space")
    expect(page.get_by_role("checkbox", name=order[4])).to_be_checked()
    page.focus("#text")
    page.keyboard.type("the film")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("was good")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".card")).to_have_count(1)
    assert page.input_value("#text") == "the film\nwas good"
    assert page.locator("#status").get_attribute("aria-live") == "polite"


def test_problems_are_said(served, opened):
    page = opened(served.with_limits, expected="413|status of")
    expect(page.locator("#problem")).to_be_hidden()
    page.press("#text", "Enter")
    expect(page.get_by_role("alert")).to_have_text("Enter a text first.")
    ask(page, text="film " * 50)
    expect(card(page, "tone").locator(".problem")).to_contain_text("at most 200")
    ask(page, text="a film")
    expect(page.get_by_role("alert")).to_be_hidden()
    served.engine.withdraw("stars")
    try:
        ask(page, text="a good film")
        expect(card(page, "stars").locator(".problem")).to_contain_text("stars")
        expect(card(page, "tone").locator(".said")).to_be_visible()
    finally:
        served.engine.serve("stars", "stars")


def test_a_service_that_is_gone(served, opened):
    page = opened(served.url, expected="ERR_|Failed to load")
    expect(page.locator(".chip")).to_have_count(len(TASKS) + 1)
    page.route("**/v1/predict", lambda route: route.abort())
    page.fill("#text", "a film")
    page.press("#text", "Enter")
    expect(page.get_by_role("alert")).to_have_text("The service cannot be reached.")
    page.unroute("**/v1/predict")
    busy = {
        "status": 429,
        "headers": {"Retry-After": "3"},
        "json": {"error": {"type": "busy", "message": "It is full."}},
    }
    page.route("**/v1/predict", lambda route: route.fulfill(**busy))
    page.press("#text", "Enter")
    expect(page.get_by_role("alert")).to_have_text("It is full. Try again in 3 s.")


def test_a_key_stays_in_the_tab(served, opened):
    page = opened(served.with_key, expected="401")
    expect(page.get_by_role("alert")).to_contain_text("a valid key is needed")
    page.fill("#key", KEY)
    page.press("#key", "Tab")
    ask(page)
    page.reload()
    expect(page.locator(".chip")).to_have_count(len(TASKS) + 1)
    kept = page.evaluate("[{...localStorage}, document.cookie, Object.values({...sessionStorage})]")
    assert kept == [{}, "", [KEY]]
    other = opened(served.with_key, expected="401")
    expect(other.get_by_role("alert")).to_be_visible()
    assert other.input_value("#key") == ""


def test_many_tasks_can_be_searched(served, opened):
    page = opened(served.url, expected="Failed to load")
    (one,) = (task for task in page.request.get(f"{served.url}/v1/tasks").json()["tasks"] if task["name"] == "tone")
    many = {"tasks": [{**one, "name": f"task-{i}"} for i in range(100)]}
    page.route("**/v1/tasks", lambda route: route.fulfill(json=many))
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#more")).to_have_text("Show all 100 tasks")
    expect(page.locator(".chip")).to_have_count(1)
    expect(page.locator("#tasks tr")).to_have_count(10)
    page.get_by_role("searchbox").fill("SK-97")
    expect(page.locator(".chip")).to_have_count(2)
    page.get_by_role("checkbox", name="task-97").check()
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_role("checkbox", name="task-97")).to_be_checked()
    expect(page.locator(".chip")).to_have_count(2)
    page.locator("#more").click()
    expect(page.locator(".chip")).to_have_count(101)
    page.get_by_role("checkbox", name="task-42").check()
    assert page.evaluate("document.activeElement.dataset.name") == "task-42"
    page.locator("#more").click()
    expect(page.locator(".chip")).to_have_text(["All 100", "task-42classification", "task-97classification"])
    page.locator("#more-rows").click()
    expect(page.locator("#tasks tr")).to_have_count(100)
    page.unroute("**/v1/tasks")
    page.route("**/v1/tasks", lambda route: route.fulfill(json={"tasks": []}))
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#tasks")).to_have_text("Nothing is served yet.")


@pytest.mark.parametrize("width", [1200, 360])
def test_answers_come_into_view(served, opened, width):
    page = opened(served.url, width)
    ask(page)
    low = "innerHeight - 200" if width > 1000 else "0.4 * innerHeight"
    box = "document.getElementById('answers-title').getBoundingClientRect()"
    until(lambda: page.evaluate(f"{box}.top <= {low} && {box}.bottom >= 0"))


def test_words_of_ours_are_explained(served, opened):
    page = opened(served.url)
    ask(page)
    expect(page.locator("figure.alpha")).to_contain_text("How strongly AdapterBias moves each token")
    for word in ("bank", "memory", "disk"):
        expect(page.locator("#states dt").filter(has_text=word)).to_be_visible()


def test_the_page_about_the_interface_shows_every_operation(served, opened):
    page = opened(served.url)
    page.get_by_role("link", name="HTTP interface").click()
    expect(page.locator("h2 code")).to_have_text(
        [
            "POST /v1/predict",
            "POST /v1/predict/stream",
            "GET /v1/tasks",
            "GET /v1/tasks/{name}",
            "PUT /v1/tasks/{name}",
            "DELETE /v1/tasks/{name}",
            "GET /health",
            "GET /ready",
            "GET /metrics",
        ]
    )
    expect(page.locator("#keys")).to_have_text("This service has no keys: anyone who can reach it may send requests.")
    page.get_by_role("link", name="Alone").first.click()
    expect(page.locator("#Alone + p")).to_contain_text("one request by itself")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_it_waits_for_a_service_that_warms_up(served, opened):
    page = opened(served.url, expected="503")
    expect(page.locator(".chip")).to_have_count(len(TASKS) + 1)
    cold = {"error": {"type": "not_ready", "message": "It is not ready yet."}}
    page.route("**/ready", lambda route: route.fulfill(status=503, json=cold))
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("alert")).to_have_text("It is not ready yet.")
    page.unroute("**/ready")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_table_says_what_is_served(served, opened):
    page = opened(served.url)
    rows = page.locator("#tasks tr")
    expect(rows).to_have_count(len(TASKS))
    row = rows.filter(has_text="biased")
    for said in ("classification", "adapterbias", "1,234", "no, yes", "accuracy 0.875", "1"):
        expect(row).to_contain_text(said)
    expect(rows.filter(has_text="names")).to_contain_text("PER, LOC")


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_fits_and_can_be_read(served, opened, width, scheme):
    page = opened(served.url, width, scheme)
    ask(page, text=TEXT + " " + "x" * 300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == 0
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 80) == (scheme == "dark")
    poor = page.evaluate(CONTRAST)
    assert poor["seen"] > 50
    assert poor["poor"] == []


CONTRAST = """() => {
  const numbers = (colour) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((n) => n / 255);
  };
  const behind = (e) => {
    if (!e) return [1, 1, 1];
    const [r, g, b, a] = numbers(getComputedStyle(e).backgroundColor);
    if (a === 1) return [r, g, b];
    const under = behind(e.parentElement);
    return [r, g, b].map((n, i) => n * a + under[i] * (1 - a));
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const seen = (e) => e.checkVisibility() && !e.closest(".unseen, thead");
  const shown = [...document.querySelectorAll("body *")].filter((e) => own(e) && seen(e));
  const poor = shown.filter((e) => {
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  });
  return { seen: shown.length, poor: poor.map((e) => `${e.className} ${e.textContent}`.slice(0, 60)) };
}"""
"""How many elements have text, and which have too little contrast (WCAG AA) with what is behind them."""
