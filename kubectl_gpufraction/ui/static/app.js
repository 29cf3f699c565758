"use strict";
/*
 * The page: asks for one view every few seconds, and draws it. What there is to show comes from the API as JSON and goes
 * into the page as text only, never as HTML: names and messages are written by strangers.
 *
 * The address after # keeps what is looked at: #queue?filter=ns:team-a/&from=50&sort=-priority&pod=default/train-0
 */

const EVERY = 3000;      // milliseconds between two looks
const AFTER_FAILURE = 6000;
const USE_EVERY = 60000; // between two questions about what GPUs really use
const ROWS = { gpus: 25, queue: 50, pods: 50, namespaces: 50 };
const VIEWS = ["gpus", "queue", "pods", "namespaces"];
const $ = (id) => document.getElementById(id);

let seen = null;         // the last answer
let tag = "";            // its ETag, for the address `tagged`
let tagged = "";
let readAt = 0;          // when the cluster was read, by this machine's clock
let lost = "";           // why this page's own server does not answer
let lostSince = 0;
let timer = 0;
let asking = null;       // the request under way
let asTable = false;
let use = { address: "", at: 0, gpus: {}, why: "" }; // what GPUs really use, of the nodes that are shown
let spoken = "";         // the state that assistive technology was told

// -- making elements ------------------------------------------------------------------------------------------------

/** An element. Attributes: `class`, `style` as an object, any other as it is; children: elements, text, or nothing. */
function h(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

/** A line of figures from 0 to `most`, oldest first; where nothing is known there is a gap. */
function spark(figures, most, label) {
  const NS = "http://www.w3.org/2000/svg", WIDE = 120, HIGH = 20;
  const made = document.createElementNS(NS, "svg");
  for (const [key, value] of Object.entries({ class: "spark", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label, preserveAspectRatio: "none" })) made.setAttribute(key, value);
  const title = document.createElementNS(NS, "title");
  title.textContent = label;
  const line = document.createElementNS(NS, "path");
  let pen = "M", path = "";
  figures.forEach((figure, at) => {
    if (figure === null) { pen = "M"; return; }
    const x = (WIDE * at) / Math.max(1, figures.length - 1), y = HIGH - 1 - ((HIGH - 2) * Math.min(figure, most)) / (most || 1);
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (pen === "M") path += "h.5"; // a moment alone is a dot
    pen = "L";
  });
  line.setAttribute("d", path);
  made.append(title, line);
  return made;
}

/** Make `old` equal to `made` and keep the elements that are there: focus and scrolling stay where they are. */
function morph(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "tabindex") old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (name === "style" || (name === "tabindex" && old.hasAttribute(name))) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const property of ["flexGrow", "width", "height"]) {
    if (old.style && old.style[property] !== made.style[property]) old.style[property] = made.style[property];
  }
  morphChildren(old, [...made.childNodes]);
}

function morphChildren(parent, wanted) {
  const keyed = new Map();
  const kept = new Set(wanted.map((each) => each.dataset && each.dataset.key));
  for (const child of [...parent.children]) {
    if (!child.dataset.key) continue;
    if (kept.has(child.dataset.key)) keyed.set(child.dataset.key, child);
    else child.remove(); // first, so that those behind it need not be moved, which would take the focus from them
  }
  let at = parent.firstChild;
  for (const each of wanted) {
    const key = each.dataset && each.dataset.key;
    let same = key ? keyed.get(key) : at;
    if (same && !key && same.dataset && same.dataset.key) same = null;
    if (same && same.nodeName === each.nodeName) {
      if (same === at) at = at.nextSibling;
      else parent.insertBefore(same, at);
      if (same.nodeType === Node.TEXT_NODE) {
        if (same.data !== each.data) same.data = each.data;
      } else morph(same, each);
    } else parent.insertBefore(each, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Draw these children into the element; the focus stays where it was, also on an element that changes its place. */
function show(element, ...children) {
  const focused = document.activeElement;
  const nodes = children.flat(3).filter(Boolean).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  morphChildren(element, nodes);
  if (focused !== document.activeElement && focused.isConnected && focused !== document.body) focused.focus({ preventScroll: true });
}

// -- words and figures ----------------------------------------------------------------------------------------------

const many = (count, one, several) => `${count.toLocaleString("en")} ${count === 1 ? one : several || one + "s"}`;
function memory(mib) {
  if (!mib) return "0";
  if (mib >= 1048576) return `${(mib / 1048576).toFixed(1)} TiB`;
  if (mib >= 1024) return `${(mib / 1024).toFixed(mib >= 102400 || mib % 1024 === 0 ? 0 : 1)} GiB`;
  return `${mib} MiB`;
}
const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) : 0);
function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (whole >= Math.max(2 * size, 120)) return `${Math.floor(whole / size)} ${name}`;
  return `${whole} s`;
}
function age(stamp, form = "ago") {
  const at = Date.parse(stamp);
  if (Number.isNaN(at)) return h("span", {}, "–");
  const seconds = (Date.now() - at) / 1000;
  return h("time", { datetime: stamp, title: new Date(at).toLocaleString() }, form === "ago" ? `${duration(seconds)} ago` : duration(seconds));
}
const clock = (milliseconds) => new Date(milliseconds).toLocaleTimeString();

// -- where we are ---------------------------------------------------------------------------------------------------

function place() {
  const [view, query] = location.hash.slice(1).split("?");
  const asked = new URLSearchParams(query || "");
  return {
    view: VIEWS.includes(view) ? view : "gpus",
    filter: asked.get("filter") || "",
    sort: asked.get("sort") || "",
    from: Math.max(0, parseInt(asked.get("from") || "0", 10) || 0),
    pod: asked.get("pod") || "",
  };
}

function go(change) {
  const now = { ...place(), ...change };
  const asked = new URLSearchParams();
  if (now.filter) asked.set("filter", now.filter);
  if (now.from) asked.set("from", String(now.from));
  if (now.sort && now.view === "queue") asked.set("sort", now.sort);
  if (now.pod) asked.set("pod", now.pod);
  const text = asked.toString();
  const hash = `#${now.view}${text ? "?" + text : ""}`;
  if (hash !== location.hash) location.hash = hash;
}

// -- asking ---------------------------------------------------------------------------------------------------------

async function look() {
  clearTimeout(timer);
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  const { view, filter, from, sort } = place();
  const wanted = new URLSearchParams({ filter, from: String(from), count: String(ROWS[view]) });
  const address = `api/${view}?${wanted}${view === "queue" && sort ? `&sort=${encodeURIComponent(sort)}` : ""}`;
  let next = EVERY;
  try {
    const headers = tag && tagged === address ? { "If-None-Match": tag } : {};
    const answer = await fetch(address, { headers, cache: "no-store", signal: mine.signal });
    if (answer.status === 200) {
      seen = { ...(await answer.json()), name: view };
      tag = answer.headers.get("ETag") || "";
      tagged = address;
    } else if (answer.status !== 304) {
      const told = await answer.json().catch(() => ({}));
      throw new Error(told.error || `HTTP ${answer.status}`);
    }
    readAt = Date.now() - 1000 * Number(answer.headers.get("Age") || 0);
    lost = "";
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!lost) lostSince = Date.now();
    lost = error instanceof TypeError ? "the command that serves this page does not answer; has it ended?" : error.message;
    next = AFTER_FAILURE;
  }
  if (mine !== asking) return;
  asking = null;
  if (seen && !seen.head.whole && !location.hash) { // a tenant's own pods come first
    location.replace("#pods");
    return;
  }
  draw();
  await story();
  await used(`api/use?${wanted}`, view);
  timer = setTimeout(look, next);
}

/** Ask what the GPUs that are shown really use, where the page can know it. */
async function used(address, view) {
  if (view !== "gpus" || !seen || !seen.head.measured || lost) return;
  if (use.address === address && Date.now() - use.at < USE_EVERY) return;
  const told = await fetch(address, { cache: "no-store" }).then((answer) => answer.json()).catch(() => ({}));
  use = { address, at: Date.now(), gpus: told.gpus || {}, why: told.why || told.error || "" };
  if (place().view === "gpus") draw();
}

// -- drawing --------------------------------------------------------------------------------------------------------

function draw() {
  const at = place();
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.view === at.view;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  $("main").setAttribute("aria-labelledby", `tab-${at.view}`);
  if (document.activeElement !== $("filter") && $("filter").value !== at.filter) $("filter").value = at.filter;
  $("as-table").setAttribute("aria-pressed", String(asTable));
  $("as-table").hidden = at.view !== "gpus";
  status();
  if (!seen) {
    if (lost) show($("main"), h("p", { class: "empty" }, `Cannot show the cluster: ${lost}`));
    return;
  }
  head(seen.head);
  if (seen.name !== at.view) return;
  const drawn = { gpus, queue, pods, namespaces }[at.view](seen.view, seen.head);
  show($("main"), drawn, pager(seen.view));
  rove();
}

function status() {
  const old = lost ? { since: seen ? readAt : lostSince, why: lost } : seen && seen.old ? { since: Date.parse(seen.old.since), why: seen.old.why } : null;
  const text = old
    ? `${seen ? "This page is out of date, from" : "No data since"} ${clock(old.since)} (${duration((Date.now() - old.since) / 1000)} ago): ${old.why}`
    : seen ? `updated ${duration((Date.now() - readAt) / 1000)} ago` : "";
  const state = old ? old.why : "";
  const element = $("status");
  element.classList.toggle("old", Boolean(old));
  // Only a change of state is spoken; the seconds are not.
  element.setAttribute("aria-live", state === spoken ? "off" : "polite");
  spoken = state;
  element.textContent = text;
}

function head(sums) {
  const name = sums.cluster ? `${sums.cluster} · GPU shares` : "GPU shares";
  $("waiting").textContent = sums.waiting ? String(sums.waiting) : "";
  document.title = sums.waiting ? `(${sums.waiting}) ${name}` : name;
  $("cluster").textContent = sums.cluster ? `${sums.cluster} ·` : "";
  $("dashboard").hidden = !sums.dashboard;
  if (sums.dashboard) $("dashboard").href = sums.dashboard;
  show($("banners"), sums.banners.map(banner), sums.unserved.length ? h("div", { class: "banner warn", "data-key": "unserved" }, sums.unserved.map((line) => h("div", {}, line))) : null);
  show($("rights"), rights(sums));
  if (!sums.whole) {
    show($("head"),
      figure("Pods with a share", many(sums.pods - sums.waiting, "pod"), `in namespace ${sums.namespace}`),
      figure("Waiting", String(sums.waiting), "for a share"));
    return;
  }
  const part = percent(sums.usedMiB, sums.memoryMiB);
  const trouble = sums.unhealthy + sums.withheld + sums.missing;
  show($("head"),
    h("dl", { class: "figure", "data-key": "memory" }, h("dt", {}, "GPU memory allocated"),
      h("dd", {}, `${memory(sums.usedMiB)} of ${memory(sums.memoryMiB)}`,
        h("div", { class: "meter", role: "img", "aria-label": `${part} % of the memory` }, h("i", { style: { width: `${part}%` } })),
        h("small", {}, `${part} % of the memory, ${sums.cores} % of the cores`))),
    figure("GPUs", sums.gpus.toLocaleString("en"), `on ${many(sums.nodes, "node")}`),
    figure("Unused", sums.unused.toLocaleString("en"), sums.unused === 1 ? "GPU without a share" : "GPUs without a share"),
    figure("Largest unused", sums.largest ? memory(sums.largest.freeMiB) : "none", sums.largest ? `GPU ${sums.largest.gpu} of ${sums.largest.node}` : "no GPU accepts another pod"),
    figure("Waiting", sums.waiting.toLocaleString("en"), sums.waiting === 1 ? "pod in the queue" : "pods in the queue"),
    trouble ? figure("Out of use", `✕ ${trouble}`, [sums.missing && `${sums.missing} missing`, sums.unhealthy && `${sums.unhealthy} unhealthy`, sums.withheld && `${sums.withheld} withheld`].filter(Boolean).join(", "), "bad") : null);
}

function banner(each) {
  return h("div", { class: `banner ${each.kind === "agents" ? "warn" : "bad"}`, role: "alert", "data-key": each.kind },
    h("b", {}, `! ${each.what}.`), h("span", {}, ` ${each.means} `), h("span", { class: "cure" }, "Look at: ", h("code", {}, each.cure)));
}

/** What the user's rights do not show, and which rights would. */
function rights(sums) {
  const lines = [];
  if (!sums.whole) {
    lines.push(`You see the pods of namespace ${sums.namespace}; kubectl gpufraction ui -n NAMESPACE shows those of another one.`);
    lines.push(`To see GPUs, who shares them and places in the queue, you need the right to list nodes, gpunodes and the pods of all namespaces.${sums.unlisted.length ? ` You may not list ${sums.unlisted.join(", ")}.` : ""}`);
  }
  if (sums.unseen.length) lines.push(`Not shown: ${sums.unseen.join("; ")}.`);
  if (!lines.length) return null;
  return h("details", { class: "note", "data-key": "rights" }, h("summary", {}, "What you cannot see here"), lines.map((line) => h("p", {}, line)));
}

const figure = (name, value, small, kind = "") => h("dl", { class: `figure ${kind}`.trim(), "data-key": name }, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, small)));

function pager(view) {
  if (view.total <= view.rows.length) return null;
  const last = view.from + view.rows.length;
  return h("div", { class: "pager", "data-key": "pager" },
    h("span", {}, `${view.from + 1} to ${last} of ${view.total.toLocaleString("en")}`),
    h("button", { "data-action": "page", "data-from": Math.max(0, view.from - ROWS[place().view]), disabled: view.from === 0 }, "Previous"),
    h("button", { "data-action": "page", "data-from": last, disabled: last >= view.total }, "Next"));
}

const nothing = (what) => h("p", { class: "empty" }, place().filter ? `${what} matches the filter “${place().filter}”.` : `${what}.`);

// -- GPUs -----------------------------------------------------------------------------------------------------------

const LEVELS = {
  driver: "the driver stops a pod that takes more memory than its share",
  mps: "NVIDIA MPS stops a pod that takes more than its share",
  preload: "a library in the container stops a program that takes more memory than its share",
  watch: "a pod that takes more than its share is reported",
};

function gpus(view, sums) {
  if (!sums.whole) return h("p", { class: "empty" }, `GPUs are not shown. You need the right to list nodes, gpunodes and the pods of all namespaces${sums.unlisted.length ? `; you may not list ${sums.unlisted.join(", ")}` : ""}. Queue and Pods show namespace ${sums.namespace}.`);
  if (!view.rows.length) return nothing(place().filter ? "No node" : "No node with GPUs");
  return [
    legend(view.legend),
    use.why && sums.measured ? h("p", { class: "note", "data-key": "why" }, `Real use of the GPUs is not shown: ${use.why}`) : null,
    view.map.length ? map(view) : null,
    asTable ? gpuTable(view.rows) : view.rows.map(node),
  ];
}

/** The namespaces with their colours. Each one filters; once more, and all are shown again. */
function legend(named) {
  if (!named.names.length) return null;
  const now = place().filter;
  return h("div", { class: "legend", role: "group", "aria-label": "Namespaces", "data-key": "legend" },
    named.names.map((each) => h("button", { class: `c${each.tone}`, "data-key": each.namespace, "data-action": "filter", "data-filter": now === each.filter ? "" : each.filter, "aria-pressed": String(now === each.filter), title: `${memory(each.memoryMiB)} allocated` }, each.namespace)),
    named.more ? h("button", { "data-view": "namespaces", "data-key": "+" }, `and ${named.more} more`) : null);
}

function map(view) {
  const drawn = view.map.reduce((sum, group) => sum + group.tiles.length, 0);
  return h("section", { class: "map", "data-key": "map" },
    h("h2", {}, many(view.total, "node"), h("span", {}, "height: memory allocated"), h("span", {}, "striped: accepts no new pods"), h("span", {}, "!: a GPU is unhealthy or missing")),
    view.map.map(group),
    view.total > drawn ? h("p", { class: "note" }, `${drawn.toLocaleString("en")} are drawn; the filter finds the others.`) : null);
}

function group(each) {
  const name = each.model + (each.pool ? `, pool ${each.pool}` : "");
  const part = percent(each.usedMiB, each.memoryMiB);
  const figures = [many(each.nodes, "node"), many(each.gpus, "GPU"), `${part} % allocated`, each.largestMiB ? `largest unused ${memory(each.largestMiB)}` : "nothing unused", each.out ? `${each.out} out of use` : ""];
  return h("section", { class: "group", "data-key": name, "aria-label": name },
    h("h3", {}, each.filter ? h("button", { class: "link", "data-action": "filter", "data-filter": each.filter }, name) : name, h("small", {}, figures.filter(Boolean).join(" · "))),
    h("div", { class: "tiles", "data-rove": "flat", role: "group", "aria-label": `Nodes: ${name}` },
      each.tiles.map(([node, full, matter]) => h("button", { class: `tile ${matter}`, "data-key": node, "data-action": "filter", "data-filter": node, title: `${node}: ${full} %`, "aria-label": `${node}, ${full} % of the memory allocated${matter === "well" ? "" : ", " + matter}` },
        h("i", { style: { height: `${full}%` } })))));
}

function stateBadge(state) {
  const [first, ...more] = state.split(",");
  const [kind, sign] = first === "Ready" ? ["good", "✓"] : first === "Cordoned" ? ["warn", "‖"] : ["bad", "✕"];
  return [h("span", { class: `badge ${kind}` }, `${sign} ${first}`),
    more.includes("AgentSilent") ? h("span", { class: "badge warn", title: "The node's agent is silent: the node accepts no new pods, and its figures may be old" }, "? Agent silent") : null];
}

function levels(isolation) {
  const text = isolation.map((level) => LEVELS[level] || level).join("; ") || "nothing stops a pod that takes more than its share";
  const limiting = isolation.filter((level) => level !== "watch"); // it reports, and limits nothing
  return h("span", { class: `badge level ${limiting.length ? "" : "none"}`.trim(), title: text }, `limits: ${limiting.join(", ") || "none"}`);
}

function node(row) {
  const models = new Set(row.gpus.map((gpu) => gpu.model));
  return h("section", { class: "node", "data-key": row.name, "aria-label": `Node ${row.name}` },
    h("header", {}, h("h2", {}, row.name), stateBadge(row.state), levels(row.isolation),
      h("span", { class: "driver" }, [row.pool && `pool ${row.pool}`, many(row.gpus.length, "GPU"), row.driver && `driver ${row.driver}`].filter(Boolean).join(" · "))),
    row.problem ? h("p", { class: "note" }, row.problem) : null,
    h("div", { "data-rove": "grid" }, row.gpus.map((gpu) => card(row, gpu, models))));
}

const isBad = (gpu) => gpu.health === "Unhealthy" || gpu.health === "Missing";
const closed = (row, gpu) => gpu.health !== "Healthy" || !row.open;

function card(row, gpu) {
  const free = closed(row, gpu) ? "accepts no new pods" : gpu.exclusive ? "used by one pod exclusively" : gpu.cores >= 100 && gpu.freeMiB ? `${memory(gpu.freeMiB)} unused, no cores` : gpu.freeMiB ? `${memory(gpu.freeMiB)} unused` : "";
  const shut = isBad(gpu) ? " sick" : closed(row, gpu) ? " shut" : "";
  const coresLeft = Math.max(0, 100 - gpu.cores);
  return h("div", { class: "gpu", "data-key": gpu.uuid },
    h("div", { class: "who" }, h("b", {}, `GPU ${gpu.gpu}`),
      gpu.health !== "Healthy" ? h("span", { class: `badge ${isBad(gpu) ? "bad" : "warn"}`, title: gpu.reason }, `${isBad(gpu) ? "✕" : "‖"} ${gpu.health}`) : null,
      h("small", { title: gpu.uuid }, gpu.model)),
    h("div", { class: "bars", role: "group", "aria-label": `GPU ${gpu.gpu} of ${row.name}: ${summary(row, gpu)}` },
      h("div", { class: `bar${shut}` },
        gpu.sharers.map((sharer) => part(gpu, sharer)),
        gpu.more.count ? h("button", { class: "part", "data-key": "+", "data-action": "filter-pods", "data-filter": row.name, style: { flexGrow: gpu.more.memoryMiB }, title: `${gpu.more.count} more` }, `+${gpu.more.count}`) : null,
        gpu.freeMiB || !gpu.promisedMiB || closed(row, gpu) ? h("span", { class: "rest", "data-key": "rest", "aria-hidden": "true", style: { flexGrow: Math.max(gpu.freeMiB, 0) } }, h("span", {}, free)) : null),
      h("div", { class: `bar cores${shut}`, "aria-hidden": "true" },
        gpu.sharers.filter((sharer) => sharer.cores).map((sharer) => h("span", { class: `part c${sharer.tone}`, "data-key": `${sharer.kind}/${sharer.namespace}/${sharer.name}`, style: { flexGrow: sharer.cores } })),
        gpu.more.cores ? h("span", { class: "part", style: { flexGrow: gpu.more.cores } }) : null,
        h("span", { class: "rest", "data-key": "rest", style: { flexGrow: coresLeft } }))),
    h("div", { class: "what" },
      h("div", {}, `${memory(gpu.memoryMiB)} of ${memory(gpu.promisedMiB)}`, gpu.oversubscribed ? [" ", h("span", { class: "badge warn", title: oversubscription(gpu) }, gpu.memoryMiB > gpu.promisedMiB ? "! over" : `${(gpu.promisedMiB / gpu.totalMiB).toFixed(1)}×`)] : null, bursting(gpu) ? [" ", h("span", { class: "badge level", title: bursting(gpu) }, `limits ${(gpu.limitsMiB / gpu.totalMiB).toFixed(1)}×`)] : null),
      h("div", { class: "free" }, `cores ${gpu.cores} % · ${many(gpu.shares, "share")}`),
      inUse(row, gpu),
      gpu.reason ? h("div", { class: "free" }, gpu.reason) : null));
}

const latest = (figures) => (figures || []).reduce((last, each) => (each === null ? last : each), null);

function usedNow(found) {
  const [size, busy] = [latest(found.memoryMiB), latest(found.busy)];
  return [size === null ? "" : `${memory(size)} used`, busy === null ? "" : `busy ${busy} %`].filter(Boolean).join(", ");
}

/** What the GPU really uses, now and in the last hour; nothing where nothing is known. */
function inUse(row, gpu) {
  const found = use.gpus[`${row.name}/${gpu.uuid}`];
  if (!found) return null;
  const says = usedNow(found);
  const hour = (figures, unit) => { const known = figures.filter((each) => each !== null); return `${unit(Math.min(...known))} to ${unit(Math.max(...known))} in the last hour`; };
  return h("div", { class: "use", "data-key": "use" }, h("span", {}, `in use: ${says}`),
    found.memoryMiB ? spark(found.memoryMiB, gpu.totalMiB, `Memory used: ${hour(found.memoryMiB, memory)}`) : null,
    found.busy ? spark(found.busy, 100, `Busy: ${hour(found.busy, (each) => `${each} %`)}`) : null);
}

const bursting = (gpu) => (gpu.limitsMiB > Math.max(gpu.totalMiB, gpu.memoryMiB) ? `Memory limits add up to ${memory(gpu.limitsMiB)} of a card with ${memory(gpu.totalMiB)}` : "");
const oversubscription = (gpu) => (gpu.memoryMiB > gpu.promisedMiB ? "Pods hold more than the GPU has" : `The options promise ${memory(gpu.promisedMiB)} of a card with ${memory(gpu.totalMiB)}`);
const summary = (row, gpu) => `${gpu.model}, ${gpu.health}, ${memory(gpu.memoryMiB)} of ${memory(gpu.promisedMiB)} allocated, cores ${gpu.cores} %, ${many(gpu.shares, "share")}${gpu.oversubscribed ? `, ${oversubscription(gpu)}` : ""}${bursting(gpu) ? `, ${bursting(gpu)}` : ""}${closed(row, gpu) ? ", takes no new pods" : `, ${memory(gpu.freeMiB)} unused`}`;

function part(gpu, sharer) {
  const name = `${sharer.namespace}/${sharer.name}`;
  const idle = sharer.idleSince ? duration((Date.now() - Date.parse(sharer.idleSince)) / 1000) : "";
  const says = `${sharer.kind === "claim" ? "claim " : ""}${name}: ${memory(sharer.memoryMiB)}${sharer.cores ? `, ${sharer.cores} % of the cores` : ""}${sharer.exclusive ? ", the whole GPU" : ""}${idle ? `, idle for ${idle}` : ""}`;
  return h("button", {
    class: `part ${sharer.kind} c${sharer.tone}`, "data-key": `${sharer.kind}/${name}`,
    "data-action": sharer.kind === "pod" ? "pod" : "filter-pods", "data-pod": name, "data-filter": sharer.name,
    title: says, "aria-label": says, style: { flexGrow: Math.max(1, sharer.memoryMiB) },
  }, h("span", {}, " ", sharer.name), idle ? h("small", {}, ` idle ${idle}`) : null);
}

function gpuTable(rows) {
  const measured = seen.head.measured;
  const lines = rows.flatMap((row) => row.gpus.map((gpu) => [row.name + gpu.uuid,
    [row.name, "name"], [gpu.gpu, "number"], [gpu.model], [memory(gpu.memoryMiB), "number"], [closed(row, gpu) ? "–" : memory(gpu.freeMiB), "number"], [`${gpu.cores} %`, "number"],
    [gpu.reason ? `${gpu.health}: ${gpu.reason}` : gpu.health], [row.isolation.join(", ") || "none"], [row.state], ...(measured ? [[usedNow(use.gpus[`${row.name}/${gpu.uuid}`] || {}) || "–"]] : []),
    [gpu.sharers.map((sharer, at) => [at ? ", " : "", sharer.kind === "pod" ? podLink(`${sharer.namespace}/${sharer.name}`) : `claim ${sharer.name}`]).concat(gpu.more.count ? [` and ${gpu.more.count} more`] : []), "long"]]));
  return table("GPUs", ["Node", "#GPU", "Model", "#Allocated", "#Unused", "#Cores", "Health", "Limits", "Node's state", ...(measured ? ["In use"] : []), "Shares"], lines);
}

// -- tables ---------------------------------------------------------------------------------------------------------

/**
 * A table. A heading that begins with # has figures below it; a row begins with its key, then [content, class]. A row of
 * one element is a heading over the rows after it. `sorts`: what a heading sorts by, by its number.
 */
function table(name, headings, rows, sorts = {}) {
  const labels = headings.map((heading) => heading.replace(/^#/, ""));
  const line = ([key, ...cells]) => h("tr", { "data-key": key }, cells.map(([content, kind], at) => h("td", { class: kind || null, "data-label": labels[at] }, h("div", {}, content))));
  return h("div", { class: "scroll stack", "data-key": `table-${name}`, tabindex: "-1" },
    h("table", {}, h("caption", { class: "hidden" }, name),
      h("thead", {}, h("tr", {}, headings.map((heading, at) => h("th", { scope: "col", class: heading.startsWith("#") ? "number" : null, "aria-sort": sorts[at] ? sorted(sorts[at]) : null }, sorts[at] ? sorter(sorts[at], labels[at]) : labels[at])))),
      h("tbody", { "data-rove": "rows" }, rows.map((row) => (row instanceof Node ? row : line(row))))));
}

const sorted = (key) => ({ [key]: "ascending", [`-${key}`]: "descending" })[place().sort] || "none";
function sorter(key, label) {
  const now = sorted(key), next = now === "none" ? key : now === "ascending" ? `-${key}` : "";
  return h("button", { class: "sort", "data-action": "sort", "data-sort": next, title: next ? `Sort by ${label}` : "Group by reason" }, label, h("span", { "aria-hidden": "true" }, { ascending: " ↑", descending: " ↓", none: "" }[now]));
}

const podLink = (name) => h("button", { class: "link", "data-action": "pod", "data-pod": name, "data-key": name }, name);
const dash = (value) => (value === null || value === undefined || value === "" ? "–" : value);

const DECIDED_LATER = "not decided yet";

function queue(view, sums) {
  if (!view.rows.length) return nothing("No pod waits for a GPU share");
  const grouped = !view.sort, known = new Map(view.reasons.map((each) => [each.code, each]));
  const now = place().filter, lines = [];
  let last = null, above = null;
  for (const row of view.rows) {
    const group = known.get(row.code);
    if (grouped && row.code !== last) {
      lines.push(reason(row.code, group));
      above = group ? group.reason : "";
    }
    const same = grouped && row.reason && row.reason === above;
    [last, above] = [row.code, row.reason];
    lines.push([`${row.namespace}/${row.name}`, [dash(row.place), "number"], [podLink(`${row.namespace}/${row.name}`), "name"], [row.asks], [age(row.since, "for")],
      [same ? h("span", { class: "soft" }, "as above") : row.reason || DECIDED_LATER, "long"], [row.priority, "number"]]);
  }
  return [
    sums.whole ? null : h("p", { class: "note" }, `Only namespace ${sums.namespace}: you may not list the pods of all namespaces, so places in the queue are unknown.`),
    h("div", { class: "legend", role: "group", "aria-label": "Reasons", "data-key": "reasons" }, view.reasons.map((each) => h("button", { "data-key": each.code, "data-action": "filter", "data-filter": now === each.filter ? "" : each.filter, "aria-pressed": String(now === each.filter) }, `${each.code || DECIDED_LATER} ${each.count.toLocaleString("en")}`))),
    table("Queue", ["#Place", "Pod", "Asks for", "Waits", "Why", "#Priority"], lines, { 0: "place", 1: "name", 3: "since", 5: "priority" }),
  ];
}

/** The heading over the pods that wait for one reason. */
function reason(code, group) {
  const text = [code || DECIDED_LATER, group ? `: ${many(group.count, "pod")}` : ""].join("");
  return h("tr", { class: "reason", "data-key": `reason ${code}` }, h("th", { colspan: 6, scope: "rowgroup" }, h("b", {}, text), group && group.reason ? h("span", {}, ` ${group.reason}`) : null));
}

function pods(view) {
  if (!view.rows.length) return nothing("No pod requests a GPU share");
  return table("Pods", ["Pod", "Status", "Node", "GPUs", "#Memory", "#Cores", "Dialect"], view.rows.map((row) => [`${row.namespace}/${row.name}`,
    [podLink(`${row.namespace}/${row.name}`), "name"],
    [h("span", { class: `badge ${row.status === "Running" ? "good" : row.status === "Waiting" ? "warn" : ""}` }, row.status)],
    [dash(row.node)], [row.gpus.join(", ") || "–"], [row.memoryMiB === null ? "–" : memory(row.memoryMiB), "number"], [row.cores === null ? "–" : `${row.cores} %`, "number"],
    [row.claim ? `${row.dialect}, claim ${row.claim}` : row.dialect]]));
}

function namespaces(view, sums) {
  if (!view.rows.length) return nothing("No namespace holds a GPU share or waits for one");
  return table("Namespaces", ["Namespace", "#Memory", "Of the cluster", "#Cores", "#GPUs", "#Shares", "#Waiting"], view.rows.map((row) => {
    const part = percent(row.memoryMiB, sums.memoryMiB);
    return [row.namespace,
      [h("button", { class: "link", "data-action": "filter-pods", "data-filter": `ns:${row.namespace}/` }, row.namespace), "name"],
      [memory(row.memoryMiB), "number"],
      [sums.whole ? [`${part} %`, h("div", { class: "meter", role: "img", "aria-label": `${part} % of the cluster's GPU memory` }, h("i", { style: { width: `${Math.min(100, part)}%` } }))] : "–"],
      [`${row.cores} %`, "number"], [row.gpus, "number"], [row.holders, "number"], [row.waiting, "number"]];
  }));
}

// -- a pod's story --------------------------------------------------------------------------------------------------

async function story() {
  const name = place().pod, dialog = $("pod");
  if (!name) {
    if (dialog.open) dialog.close();
    return;
  }
  const [namespace, pod] = name.split("/");
  let told;
  try {
    const answer = await fetch(`api/pod?${new URLSearchParams({ namespace, name: pod || "" })}`, { cache: "no-store" });
    told = await answer.json();
  } catch (error) {
    told = { error: "the command that serves this page does not answer" };
  }
  if (place().pod !== name) return;
  if (!dialog.open) dialog.replaceChildren();
  show(dialog,
    h("header", { "data-key": "header" }, h("h2", { id: "pod-title" }, name), h("button", { "data-action": "close", "aria-label": "Close" }, "×")),
    told.error ? h("p", { class: "empty", "data-key": "error" }, told.error) : chapters(told));
  if (!dialog.open) dialog.showModal();
}

function chapters(told) {
  return h("div", { "data-key": "chapters" },
    h("ul", { class: "lines" }, told.lines.map((line) => h("li", {}, line))),
    h("h3", {}, "What happened"),
    h("ol", { class: "steps" }, told.steps.map((step) => h("li", { "data-key": step.what }, h("b", {}, step.what), step.at ? age(step.at) : null, step.text ? h("div", {}, step.text) : null))),
    h("h3", {}, "Events"),
    told.unseen ? h("p", { class: "note" }, `Not all are shown: ${told.unseen}`) : told.events.length ? null : h("p", { class: "note" }, "None; Kubernetes keeps them for an hour."),
    h("ul", { class: "events" }, told.events.map((event) => h("li", {}, h("span", { class: `badge ${event.warns ? "warn" : "level"}` }, `${event.warns ? "! " : ""}${event.reason}`), event.at ? age(event.at) : null, event.count > 1 ? h("span", { class: "note" }, ` ${event.count} times`) : null, h("div", {}, event.message)))));
}

// -- keys and clicks ------------------------------------------------------------------------------------------------

const ACTIONS = {
  skip: (_, event) => { event.preventDefault(); $("main").focus(); },
  pod: (target) => go({ pod: target.dataset.pod }),
  page: (target) => { go({ from: Number(target.dataset.from) }); scrollTo(0, 0); },
  filter: (target) => go({ filter: target.dataset.filter, from: 0 }),
  sort: (target) => go({ sort: target.dataset.sort, from: 0 }),
  "filter-pods": (target) => go({ view: "pods", filter: target.dataset.filter, from: 0 }),
  "as-table": () => { asTable = !asTable; draw(); },
  help: () => $("help").showModal(),
  close: (target) => target.closest("dialog").close(),
};

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-action],[data-view]");
  if (!target) {
    if (event.target instanceof HTMLDialogElement) event.target.close(); // the backdrop
    return;
  }
  if (target.dataset.view) go({ view: target.dataset.view, filter: "", from: 0 });
  else ACTIONS[target.dataset.action](target, event);
});

$("pod").addEventListener("close", () => go({ pod: "" }));

let typing = 0;
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => go({ filter: $("filter").value.trim(), from: 0 }), 200);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape") {
      clearTimeout(typing);
      $("filter").value = "";
      go({ filter: "", from: 0 });
      $("filter").blur();
      event.preventDefault();
    }
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const view = VIEWS[Number(event.key) - 1];
  if (event.key === "/") { $("filter").focus(); $("filter").select(); }
  else if (event.key === "Escape") go({ filter: "", from: 0 });
  else if (event.key === "?") ACTIONS.help();
  else if (event.key === "t" && place().view === "gpus") ACTIONS["as-table"]();
  else if (view) { go({ view, filter: "", from: 0 }); $(`tab-${view}`).focus(); }
  else if (!arrow(event.key, event.target)) return;
  event.preventDefault();
});

/** The arrows: between tabs, tiles, the shares of a GPU, the GPUs of all nodes, and the rows of a table. */
function arrow(key, from) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity }[key];
  if (step === undefined) return false;
  const across = key !== "ArrowUp" && key !== "ArrowDown";
  if (from.getAttribute("role") === "tab") {
    const to = across && moved([...document.querySelectorAll("[role=tab]")], from, step);
    if (to) go({ view: to.dataset.view, filter: "", from: 0 });
    return across && focus(to);
  }
  const group = from.closest("[data-rove]");
  if (!group) return false;
  if (group.dataset.rove === "flat") {
    const tiles = [...group.querySelectorAll("button")];
    const second = tiles.findIndex((tile) => tile.offsetTop !== tiles[0].offsetTop);
    return focus(moved(tiles, from, across ? step : step * (second < 0 ? tiles.length : second)));
  }
  if (group.dataset.rove === "grid" && across) return focus(moved([...from.parentElement.querySelectorAll("button")], from, step));
  const lines = [...document.querySelectorAll(group.dataset.rove === "grid" ? ".gpu" : "[data-rove=rows] tr:not(.reason)")].filter((line) => line.querySelector("button"));
  if (group.dataset.rove === "rows" && across) return false;
  const to = moved(lines, from.closest(".gpu, tr"), step);
  return focus(to && to.querySelector("button"));
}

function moved(all, from, step) {
  const at = all.indexOf(from);
  return at < 0 ? null : all[Math.min(all.length - 1, Math.max(0, at + step))];
}

function focus(element) {
  if (!element) return true;
  const group = element.closest("[data-rove]");
  if (group) for (const each of group.querySelectorAll("button")) each.tabIndex = each === element ? 0 : -1;
  element.focus();
  return true;
}

/** One stop for the Tab key in each group; the arrows lead on from there. */
function rove() {
  for (const group of document.querySelectorAll("[data-rove]")) {
    const buttons = [...group.querySelectorAll("button")];
    const now = buttons.find((each) => each === document.activeElement) || buttons.find((each) => each.tabIndex === 0 && each.hasAttribute("tabindex")) || buttons[0];
    for (const each of buttons) each.tabIndex = each === now ? 0 : -1;
  }
}

addEventListener("hashchange", () => { draw(); look(); });
document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else look(); });
setInterval(status, 1000);
look();
