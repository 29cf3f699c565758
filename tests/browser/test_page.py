"""The page in a real browser: what it shows of the playground, its keys, its sizes, and what it does not reveal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.browser import scenes
from tests.browser.chromium import Browser
from tests.unit.kubectl_gpufraction.objects import gpunode
from tests.unit.kubectl_gpufraction.test_manners import GPUNODES
from tests.unit.kubectl_gpufraction.test_tenants import NO, SEEN, collection

JSON = dict[str, Any]

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
_PARTS = """
return [...document.querySelectorAll('.node')].flatMap(node => [...node.querySelectorAll('.gpu')].map(gpu => {
  const bar = gpu.querySelector('.bar').getBoundingClientRect().width - 6;
  return [node.querySelector('h2').textContent, [...gpu.querySelectorAll('.bar:first-child .part')].map(part =>
    [part.textContent.trim(), part.getBoundingClientRect().width / bar])];
}));
"""
_ROWS = "tbody tr:not(.reason)"
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


def test_who_only_reports_limits_nothing(browser: Browser, small: str) -> None:
    """The playground's agents have the level `watch`."""
    ready(browser, small)
    said = "return [...document.querySelectorAll('.node .badge.level')].map(each => each.textContent)"
    assert browser.run(said) == ["limits: none"] * 3


def test_the_sums_and_the_queue_are_those_of_the_cluster(browser: Browser, small: str) -> None:
    ready(browser, small)
    assert "85 GiB of 183 GiB" in browser.text("#head")
    assert browser.text("#waiting") == "4"
    browser.click("#tab-queue")
    wait_for(lambda: browser.count(_ROWS) == 4, lambda: browser.text("main"))
    assert "team-b/train-huge-0" in browser.text(_ROWS)
    assert "short of memory" in browser.text("tbody")


def test_a_pod_has_a_story_and_escape_closes_it(browser: Browser, small: str) -> None:
    ready(browser, small + "#pods", "tbody tr")
    browser.click("tbody tr .link")
    wait_for(lambda: browser.count("dialog#pod[open] .steps li") > 1, lambda: browser.text("dialog#pod"))
    shown = browser.text("dialog#pod")
    assert "default/inference-0 requests 1x5Gi+10% (native)" in shown
    assert "share allocated" in shown
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count("dialog[open]") == 0, "the story stays open")
    assert browser.run("return location.hash") == "#pods"


def test_the_story_of_a_pod_that_waits_has_its_events(browser: Browser, small: str) -> None:
    ready(browser, small + "#queue", "tbody tr")
    browser.click(f"{_ROWS} .link")
    wait_for(lambda: "GPUWaiting" in browser.text("dialog#pod[open] .events"), lambda: browser.text("body"))


def test_it_can_be_used_with_keys_alone(browser: Browser, small: str) -> None:
    ready(browser, small)
    browser.keys("/", *"notebook-2")
    wait_for(lambda: browser.count(".node") == 1, lambda: browser.text("main"))
    assert browser.text(".node h2") == "t4"
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count(".node") == 3, lambda: browser.text("main"))
    browser.run("document.querySelector('#tab-gpus').focus()")
    browser.keys("TAB", "TAB", "TAB")  # filter, table, help
    browser.keys("TAB", "TAB", "TAB", "TAB")  # the legend's three namespaces, the first share
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
    wait_for(lambda: browser.count(_ROWS) == 4, lambda: browser.text("main"))
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
    """
    A pod's condition can contain any text. An attacker who may write it wants it to run in an administrator's browser.
    """
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    ready(browser, small + "#queue", "tbody tr")
    row = {"place": 1, "namespace": "default", "name": evil, "asks": evil, "since": evil, "reason": evil, "priority": 0}
    browser.run(
        "const [row, evil] = arguments;"
        "show($('main'), queue({rows: [row], total: 1, from: 0, sort: '-place',"
        "  reasons: [{code: evil, count: 1, reason: evil, filter: evil}]}, {whole: true}));"
        "show($('banners'), [banner({kind: evil, what: evil, means: evil, cure: evil})]);"
        "show($('rights'), rights({whole: false, namespace: evil, unlisted: [evil], unseen: [evil]}));"
        "$('head').append(legend({names: [{namespace: evil, tone: 0, memoryMiB: 1, filter: evil}], more: 0}),"
        "  group({model: evil, pool: evil, filter: evil, nodes: 1, gpus: 1, tiles: [[evil, 1, 'well']]}),"
        "  spark([1], 1, evil))",
        row,
        evil,
    )
    assert browser.text("tbody td.long") == evil
    assert browser.text("#banners b") == f"! {evil}."
    assert browser.count("body img, body script") == 0
    assert browser.run("return document.title") != "owned"


def test_when_the_command_has_ended_the_page_says_since_when_it_is_old(browser: Browser, playground: Cluster) -> None:
    with scenes.page(playground.kubeconfig) as address:
        ready(browser, address)
    old = "This page is out of date"
    wait_for(lambda: old in browser.text("#status.old"), lambda: browser.text("#status"), timeout=30)
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
    assert browser.count(".bar.sick") == 24  # memory and cores for each
    browser.keys("ESCAPE")
    wait_for(lambda: browser.count(".tile") == 1_000, lambda: browser.text("main"), timeout=20)
    browser.click('.tile[data-key="gpu-0777"]')
    wait_for(lambda: browser.count(".node") == 1, lambda: browser.text("main"), timeout=20)
    assert browser.text(".node h2") == "gpu-0777"


def test_the_arrows_move_over_the_map(browser: Browser, large: str) -> None:
    ready(browser, large)
    browser.run("document.querySelector('.tile').focus()")
    browser.keys("ARROW_RIGHT", "ARROW_RIGHT")
    third = browser.run("return document.querySelectorAll('.tile')[2].dataset.key")
    assert browser.run("return document.activeElement.dataset.key") == third
    browser.keys("ARROW_DOWN")
    below = browser.run(
        "const [a, b] = [arguments[0], document.activeElement.dataset.key].map(key =>"
        " document.querySelector(`.tile[data-key='${key}']`).getBoundingClientRect()); return [b.x - a.x, b.y > a.y]",
        third,
    )
    assert below == [0, True]


def test_the_next_page_of_a_long_queue(browser: Browser, large: str) -> None:
    ready(browser, large + "#queue", "tbody tr")
    assert browser.count(_ROWS) == 50
    browser.click(".pager button:last-child")
    wait_for(lambda: browser.text(".pager").startswith("51 to 100 of 120"), lambda: browser.text(".pager"), timeout=20)
    assert browser.count(_ROWS) == 50


def test_the_map_is_in_groups_by_model_and_pool(browser: Browser, large: str) -> None:
    ready(browser, large)
    assert browser.count(".group") == 8
    assert browser.text(".group:first-of-type h3 .link") == "Tesla V100-SXM2-32GB, pool batch"
    assert "GPUs" in browser.text(".group h3 small")
    assert "% allocated" in browser.text(".group h3 small")
    assert browser.count(".banner") == 0
    browser.click(".group h3 .link")
    wait_for(lambda: browser.count(".group") == 1, lambda: browser.text("main"), timeout=20)
    assert "pool batch" in browser.text(".node .driver")


def test_a_namespace_of_the_legend_filters_and_unfilters(browser: Browser, small: str) -> None:
    ready(browser, small)
    assert browser.run("return [...document.querySelectorAll('.legend button')].map(each => each.textContent)") == [
        "team-b", "default", "team-a",
    ]  # fmt: skip
    browser.click(".legend [data-key=team-a]")
    wait_for(lambda: browser.count(".node") == 1, lambda: browser.text("main"))
    assert browser.run("return document.querySelector('#filter').value") == "ns:team-a/"
    browser.click(".legend [aria-pressed=true]")
    wait_for(lambda: browser.count(".node") == 3, lambda: browser.text("main"))


def test_the_queue_is_grouped_by_reason_and_sorts_by_a_heading(browser: Browser, small: str) -> None:
    def order() -> list[str]:
        found = browser.run("return [...document.querySelectorAll('tbody tr td.name')].map(each => each.textContent)")
        return [str(name).rpartition("/")[2] for name in found]

    ready(browser, small + "#queue", "tbody tr.reason")
    assert browser.count("tr.reason") == browser.count(".legend button")
    browser.click("th:nth-child(2) .sort")
    wait_for(lambda: browser.count("tr.reason") == 0, lambda: browser.text("main"))
    assert order() == ["whole-card-0", "train-huge-0", "train-huge-1", "train-huge-2"]
    browser.click("th:nth-child(2) .sort")
    wait_for(lambda: order()[0] == "train-huge-2", lambda: browser.text("main"))
    assert browser.run("return document.querySelector('th:nth-child(2)').getAttribute('aria-sort')") == "descending"
    browser.click("th:nth-child(2) .sort")
    wait_for(lambda: browser.count("tr.reason") > 0, lambda: browser.text("main"))


# -- states ---------------------------------------------------------------------------------------------------------


def test_the_header_and_the_title_name_the_cluster(browser: Browser, small: str) -> None:
    ready(browser, small)
    assert browser.text("h1") == "playground · GPU shares"
    assert browser.run("return document.title") == "(4) playground · GPU shares"
    assert browser.text("#status").startswith("updated ")
    assert browser.count(".banner") == 0


def test_a_banner_says_that_nobody_leads_and_what_that_means(browser: Browser, tmp_path: Path) -> None:
    with scenes.answered(scenes.TROUBLED, tmp_path) as address:
        ready(browser, address)
        shown = browser.text("#banners")
        browser.open("about:blank")
    assert "No allocator leads." in shown
    assert "Pods that request a GPU share wait until one leads. Running pods keep their GPUs." in shown
    assert "The webhook does not answer: 0 of 2 replicas of the Deployment gpufraction Ready." in shown
    assert "kubectl -n gpufraction-system logs" in shown


def test_a_tenant_lands_on_the_own_pods_and_learns_the_rights(browser: Browser, tmp_path: Path) -> None:
    forbidden = {scenes.LEASES: NO, scenes.DEPLOYMENTS: NO, scenes.HOOKS: NO}
    with scenes.answered(SEEN | forbidden, tmp_path) as address:
        ready(browser, address, "tbody tr")
        assert browser.run("return location.hash") == "#pods"
        browser.click("#rights summary")
        rights = browser.text("#rights")
        browser.click("#tab-gpus")
        wait_for(lambda: "GPUs are not shown" in browser.text("main"), lambda: browser.text("main"))
        assert browser.count(".banner") == 0
        browser.open("about:blank")
    assert "you need the right to list nodes, gpunodes and the pods of all namespaces" in rights
    assert "whether an allocator leads: you may not get leases in gpufraction-system" in rights


def test_a_card_that_vanishes_keeps_its_row(browser: Browser, tmp_path: Path) -> None:
    given = dict(scenes.WELL)
    with scenes.answered(given, tmp_path) as address:
        ready(browser, address)
        assert browser.count(".gpu") == 1
        given[GPUNODES] = collection(gpunode("n1"))
        wait_for(lambda: "✕ Missing" in browser.text(".gpu"), lambda: browser.text("main"), timeout=20)
        assert "Tesla T4" in browser.text(".gpu")
        assert "runs" in browser.text(".gpu .part")
        assert "1 missing" in browser.text("#head")
        browser.open("about:blank")


def test_actual_use_is_drawn_where_it_is_known_and_only_there(browser: Browser, tmp_path: Path) -> None:
    with scenes.answered(scenes.measured(time.time()), tmp_path, *scenes.WITH_PROMETHEUS) as address:
        ready(browser, address, ".use")
        assert (browser.count(".gpu"), browser.count(".use"), browser.count(".use svg.spark")) == (2, 1, 2)
        assert browser.text(".use > span") == "in use: 1.6 GiB used, busy 62 %"
        assert browser.run("return document.querySelectorAll('.spark title')[1].textContent") == (
            "Busy: 0 % to 84 % in the last hour"
        )
        assert browser.run("return document.querySelector('#dashboard').href") == scenes.WITH_PROMETHEUS[3]
        assert browser.text(".gpu .part") == "runs idle 2 h"
        assert browser.run(_CONTRAST) == []
        browser.open("about:blank")


@pytest.mark.parametrize("given", [scenes.TROUBLED, SEEN], ids=["troubled", "tenant"])
def test_states_of_trouble_fit_a_phone(browser: Browser, tmp_path: Path, given: JSON) -> None:
    browser.size(360, 740)
    with scenes.answered(given, tmp_path) as address:
        ready(browser, address, ".node, tbody tr")
        assert browser.run("return document.documentElement.scrollWidth") <= 360
        assert browser.run(_CONTRAST) == []
        browser.open("about:blank")


def test_a_thousand_nodes_fit_a_phone(browser: Browser, large: str) -> None:
    browser.size(360, 740)
    ready(browser, large)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
