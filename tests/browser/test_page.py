"""The page in a real browser: what it shows of the playground, its keys, its sizes, and what it keeps to itself."""

from __future__ import annotations

import pytest

from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.browser import scenes
from tests.browser.chromium import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
_PARTS = """
return [...document.querySelectorAll('.node')].flatMap(node => [...node.querySelectorAll('.gpu')].map(gpu => {
  const bar = gpu.querySelector('.bar').getBoundingClientRect().width - 6;
  return [node.querySelector('h2').textContent, [...gpu.querySelectorAll('.bar:first-child .part')].map(part =>
    [part.textContent.trim(), part.getBoundingClientRect().width / bar])];
}));
"""
_FOCUSED = "return [document.activeElement.textContent.trim(), document.activeElement.className]"
_CONTRAST = """
const channel = value => { const c = value / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const colour = text => (text.match(/[\\d.]+/g) || []).map(Number);
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const found = colour(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const poor = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility() || element.closest('.hidden, .tile')) continue;
  const [a, b] = [light(colour(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push([element.className || element.tagName, element.textContent.slice(0, 30), ratio]);
}
return poor;
"""
_UNNAMED = """
return [...document.querySelectorAll('button, input, [role=tab], [role=img]')]
  .filter(each => each.checkVisibility())
  .filter(each => ![each.getAttribute('aria-label'), each.textContent, ...[...(each.labels || [])]
    .map(label => label.textContent)].join('').trim())
  .map(each => each.outerHTML);
"""


def ready(browser: Browser, address: str, selector: str = ".node") -> None:
    browser.open(address)
    wait_for(lambda: browser.count(selector) > 0, lambda: browser.text("body"), timeout=60)


def test_every_card_is_a_bar_with_its_sharers_to_scale(browser: Browser, small: str) -> None:
    ready(browser, small)
    found = browser.run(_PARTS)
    assert [name for name, _ in found] == ["a10"] * 4 + ["t4"] * 2 + ["v100"] * 2
    drawn = {name: width for _, parts in found for name, width in parts}
    assert len(drawn) == 12
    for _, parts in found:
        for name, width in parts:
            size = {"notebook": 3072, "inference": 5120, "train-large": 16384}[name.rpartition("-")[0]]
            assert any(abs(width - size / card) < 0.02 for card in (15109, 23028, 32768)), (name, width)


def test_the_sums_and_the_queue_are_those_of_the_cluster(browser: Browser, small: str) -> None:
    ready(browser, small)
    assert "85 GiB of 183 GiB" in browser.text("#head")
    assert browser.text("#waiting") == "4"
    browser.click("#tab-queue")
    wait_for(lambda: browser.count("tbody tr") == 4, lambda: browser.text("main"))
    first = browser.text("tbody tr")
    assert "team-b/train-huge-0" in first
    assert "short of memory" in first


def test_a_pod_has_a_story_and_escape_closes_it(browser: Browser, small: str) -> None:
    ready(browser, small + "#pods", "tbody tr")
    browser.click("tbody tr .link")
    wait_for(lambda: browser.count("dialog#pod[open] .steps li") > 1, lambda: browser.text("dialog#pod"))
    shown = browser.text("dialog#pod")
    assert "default/inference-0 asks for 1x5Gi+10% (native)" in shown
    assert "share allocated" in shown
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count("dialog[open]") == 0, "the story stays open")
    assert browser.run("return location.hash") == "#pods"


def test_the_story_of_a_pod_that_waits_has_its_events(browser: Browser, small: str) -> None:
    ready(browser, small + "#queue", "tbody tr")
    browser.click("tbody tr .link")
    wait_for(lambda: "GPUWaiting" in browser.text("dialog#pod[open] .events"), lambda: browser.text("body"))


def test_it_can_be_used_with_keys_alone(browser: Browser, small: str) -> None:
    ready(browser, small)
    browser.keys("/", *"notebook-2")
    wait_for(lambda: browser.count(".node") == 1, lambda: browser.text("main"))
    assert browser.text(".node h2") == "t4"
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count(".node") == 3, lambda: browser.text("main"))
    browser.run("document.querySelector('#tab-gpus').focus()")
    browser.keys("TAB", "TAB", "TAB", "TAB")  # filter, table, help, the first share
    assert "part" in browser.run(_FOCUSED)[1]
    first = browser.run(_FOCUSED)[0]
    browser.keys("ARROW_RIGHT")
    second = browser.run(_FOCUSED)[0]
    browser.keys("ARROW_DOWN", "ARROW_UP", "ARROW_LEFT")
    assert (first, second, browser.run(_FOCUSED)[0]) == ("notebook-0", "notebook-1", "notebook-0")
    browser.keys("ENTER")
    wait_for(lambda: "team-a/notebook-0" in browser.text("dialog#pod[open]"), lambda: browser.text("body"))
    browser.keys("ESCAPE")
    browser.run("document.querySelector('#tab-gpus').focus()")
    browser.keys("ARROW_RIGHT")
    wait_for(lambda: browser.count("tbody tr") == 4, lambda: browser.text("main"))
    assert browser.run("return document.activeElement.id") == "tab-queue"


def test_the_cards_are_a_table_too(browser: Browser, small: str) -> None:
    ready(browser, small)
    browser.keys("t")
    assert browser.count("tbody tr") == 8
    assert browser.count("th[scope=col]") == 10
    assert "notebook-0" in browser.text("tbody")
    browser.keys("t")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["gpus", "queue", "pods", "namespaces"])
def test_all_text_has_contrast_and_all_controls_have_names(
    browser: Browser, small: str, scheme: str, view: str
) -> None:
    browser.prefers(color_scheme=scheme)
    ready(browser, f"{small}#{view}", ".node" if view == "gpus" else "tbody tr")
    assert browser.run(_CONTRAST) == []
    assert browser.run(_UNNAMED) == []


@pytest.mark.parametrize("view", ["gpus", "queue", "pods", "namespaces", "pods?pod=team-b/train-huge-0"])
def test_a_screen_of_360_pixels_needs_no_scrolling_to_the_side(browser: Browser, small: str, view: str) -> None:
    browser.size(360, 740)
    ready(browser, f"{small}#{view}", "main .node, tbody tr")
    assert browser.run("return document.documentElement.scrollWidth") <= 360


def test_a_pod_that_comes_and_goes_is_seen_and_the_focus_stays(
    browser: Browser, small: str, playground: Cluster
) -> None:
    ready(browser, small + "#pods", "tbody tr")
    browser.run("document.querySelector('tbody .link[data-pod=\"team-a/notebook-1\"]').focus()")
    resources = {"limits": {"gpufraction.io/gpu-memory": "1Gi"}}
    made = {"containers": [{"name": "main", "image": "x", "resources": resources}]}
    playground.kube.create(paths.pods("default"), {"metadata": {"name": "a-new-one"}, "spec": made})
    wait_for(lambda: "default/a-new-one" in browser.text("tbody"), lambda: browser.text("tbody"), timeout=20)
    playground.kube.delete(paths.pods("default", "a-new-one"))
    wait_for(lambda: "default/a-new-one" not in browser.text("tbody"), lambda: browser.text("tbody"), timeout=60)
    assert browser.run(_FOCUSED)[0] == "team-a/notebook-1"


def test_what_strangers_write_stays_text(browser: Browser, small: str, playground: Cluster) -> None:
    """A pod's condition may hold any text; whoever may write it wants it to run in an administrator's browser."""
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    ready(browser, small + "#queue", "tbody tr")
    row = {"place": 1, "namespace": "default", "name": evil, "asks": evil, "since": evil, "reason": evil, "priority": 0}
    browser.run("show($('main'), queue({rows: [arguments[0]], total: 1, from: 0}, {whole: true}))", row)
    assert browser.text("tbody td.long") == evil
    assert browser.count("main img, main script") == 0
    assert browser.run("return document.title") != "owned"


def test_when_the_command_has_ended_the_page_says_since_when_it_is_old(browser: Browser, playground: Cluster) -> None:
    with scenes.page(playground.kubeconfig) as address:
        ready(browser, address)
    wait_for(lambda: "This picture is old" in browser.text("#status.old"), lambda: browser.text("#status"), timeout=30)
    assert browser.count(".node") == 3
    assert all("ERR_CONNECTION" in line for line in browser.errors())


def test_a_thousand_nodes_are_a_map_and_a_part_of_the_list(browser: Browser, large: str) -> None:
    ready(browser, large)
    assert "8,000" in browser.text("#head")
    assert (browser.count(".tile"), browser.count(".node")) == (1_000, 25)
    assert browser.text(".pager").startswith("1 to 25 of 1,000")
    assert browser.run("const began = performance.now(); draw(); return performance.now() - began") < 5_000
    browser.keys("/", *"is:unhealthy")
    wait_for(lambda: browser.count(".node") == 12, lambda: browser.text("#head"), timeout=20)
    assert browser.count(".bar.sick") == 24  # memory and cores of each
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count(".tile") == 1_000, lambda: browser.text("main"), timeout=20)
    browser.click('.tile[data-key="gpu-0777"]')
    wait_for(lambda: browser.count(".node") == 1, lambda: browser.text("main"), timeout=20)
    assert browser.text(".node h2") == "gpu-0777"


def test_the_arrows_move_over_the_map(browser: Browser, large: str) -> None:
    ready(browser, large)
    browser.run("document.querySelector('.tile').focus()")
    browser.keys("ARROW_RIGHT", "ARROW_RIGHT")
    assert browser.run("return document.activeElement.dataset.key") == "gpu-0002"
    browser.keys("ARROW_DOWN")
    below = browser.run(
        "const [a, b] = ['gpu-0002', document.activeElement.dataset.key].map(key =>"
        " document.querySelector(`.tile[data-key='${key}']`).getBoundingClientRect()); return [b.x - a.x, b.y > a.y]"
    )
    assert below == [0, True]


def test_the_next_page_of_a_long_queue(browser: Browser, large: str) -> None:
    ready(browser, large + "#queue", "tbody tr")
    assert browser.count("tbody tr") == 50
    browser.click(".pager button:last-child")
    wait_for(lambda: browser.text(".pager").startswith("51 to 100 of 120"), lambda: browser.text(".pager"), timeout=20)
    assert browser.count("tbody tr") == 50
