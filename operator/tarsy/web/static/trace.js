// The waterfall of a trace: rows are fetched in parts as they are scrolled to, and calls when they are opened.

import { localise, merge, notify } from "./page.js";
import { Stream } from "./stream.js";

const KEPT_PARTS = 40; // parts whose HTML is kept, so that scrolling back asks nothing
const RAW_SHOWN = 200_000; // characters of a raw answer that are shown; a copy has all

/** Fetches HTML. Throws an Error if it is refused. */
async function html(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return response.text();
}

const trace = document.getElementById("trace");
const nothing = document.getElementById("trace-empty");
if (trace) {
  showWaterfall(trace);
} else if (nothing?.dataset.live) {
  follow(nothing, nothing.dataset.upto, () => location.reload());
} else {
  enableCall(document);
}

/** Follows the log, and calls `refresh` a second after a commit, one call at a time. */
function follow(root, lastId, refresh, show = () => {}) {
  let isDue = false;
  let isBusy = false;
  const plan = async () => {
    isDue = true;
    if (isBusy) return;
    isBusy = true;
    while (isDue) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      isDue = false;
      await refresh();
    }
    isBusy = false;
  };
  new Stream(`${root.dataset.api}/events`, {
    lastId,
    on: {
      event: (_, id) => id && plan(),
      "catchup.overflow": plan,
      state: (state) => show({ connected: "live", disconnected: "disconnected, trying again", ended: "ended" }[state]),
    },
  });
}

/** Shows the rows that are seen, and the opened call beside them. */
function showWaterfall(root) {
  const table = document.getElementById("trace-rows");
  const panel = document.getElementById("trace-call");
  const size = Number(root.dataset.part);
  const query = Object.fromEntries(new URLSearchParams(root.dataset.query));
  const kept = new Map();
  const loading = new Set();
  let total = Number(root.dataset.total);
  let upto = root.dataset.upto;
  let words = "";
  let current = root.dataset.row;
  const height = table.tBodies[0].rows[0].getBoundingClientRect().height;
  let version = 0;

  /** Makes an element for each part; one that is not loaded is as high as its rows will be. */
  function layOut() {
    for (let offset = 0; offset < total; offset += size) {
      let part = document.getElementById(`rows-${offset}`);
      if (!part) {
        part = document.createElement("tbody");
        part.id = `rows-${offset}`;
        empty(part, offset);
      }
      table.append(part); // in order, whatever the page began with
    }
    for (const part of [...table.tBodies]) if (Number(part.id.slice(5)) >= total) part.remove();
    table.setAttribute("aria-rowcount", total + 1);
    showState();
  }

  function showState() {
    const rows = `${total} row${total === 1 ? "" : "s"}`;
    document.getElementById("trace-state").textContent = words ? `${rows}, ${words}` : rows;
  }

  /** Puts an element without rows in the place of a part: a new one, so that the same rows are merged again. */
  function emptied(part) {
    const replacement = document.createElement("tbody");
    replacement.id = part.id;
    empty(replacement, Number(part.id.slice(5)));
    part.replaceWith(replacement);
  }

  function empty(part, offset) {
    const row = document.createElement("tr");
    const cell = document.createElement("td");
    row.className = "trace-empty";
    cell.style.height = `${height * Math.min(size, total - offset)}px`;
    row.append(cell);
    part.replaceChildren(row);
    part.dataset.isEmpty = "true";
  }

  /** Loads the parts that are near the window, and empties those that are far. */
  function show() {
    const near = innerHeight;
    for (const part of [...table.tBodies]) {
      const place = part.getBoundingClientRect();
      const distance = Math.max(place.top - innerHeight, -place.bottom);
      const offset = Number(part.id.slice(5));
      if (distance < near / 2 && part.dataset.isEmpty) load(offset);
      else if (distance > near * 2 && !part.dataset.isEmpty && !part.contains(document.activeElement)) emptied(part);
    }
  }

  async function load(offset) {
    if (loading.has(offset)) return;
    loading.add(offset);
    const asked = version;
    try {
      const text = kept.get(offset) ?? (await html(address("/rows", { offset, upto })));
      if (asked !== version) return;
      kept.delete(offset);
      kept.set(offset, text);
      if (kept.size > KEPT_PARTS) kept.delete(kept.keys().next().value);
      merge(text);
      mark();
    } catch (error) {
      notify(`The rows cannot be loaded: ${error.message}`);
    } finally {
      loading.delete(offset);
    }
  }

  function address(path, parameters) {
    return `${root.dataset.address}${path}?${new URLSearchParams({ ...query, ...parameters })}`;
  }

  /** Reads the log to its end: every row may have moved. */
  async function refresh() {
    const focused = document.activeElement?.dataset.call;
    const text = await html(address("/rows", { offset: 0, facts: true }));
    version += 1;
    kept.clear();
    merge(text);
    const { total: newTotal, upto: newUpto, axis } = document.getElementById("rows-0").dataset;
    total = Number(newTotal);
    upto = newUpto;
    axis.split("|").forEach((label, index) => (document.getElementById("trace-axis").children[index].textContent = label));
    layOut();
    for (const part of [...table.tBodies]) {
      const offset = Number(part.id.slice(5));
      if (part.dataset.isEmpty) empty(part, offset);
      else if (offset) merge(await html(address("/rows", { offset, upto })));
    }
    mark();
    show();
    if (focused && document.activeElement === document.body) linkOf(focused)?.focus({ preventScroll: true });
  }

  const linkOf = (id) => table.querySelector(`a[data-call="${CSS.escape(id)}"]`);

  /** Marks the row that the address names. */
  function mark() {
    for (const row of table.querySelectorAll("tr[aria-current]")) row.removeAttribute("aria-current");
    document.getElementById(`row-${current}`)?.setAttribute("aria-current", "true");
  }

  function remember(id) {
    current = id;
    const parameters = new URLSearchParams(location.search);
    if (id) parameters.set("row", id);
    else parameters.delete("row");
    history.replaceState(null, "", `${location.pathname}${parameters.size ? `?${parameters}` : ""}`);
    mark();
  }

  /** Scrolls to a row, whose part is fetched if it is not here. */
  async function reveal(id) {
    if (!document.getElementById(`row-${id}`)) merge(await html(address("/rows", { row: id, upto })));
    mark();
    document.getElementById(`row-${id}`)?.scrollIntoView({ block: "center" });
  }

  async function open(call) {
    const [type, n] = call.split("-");
    if (!["llm", "tool"].includes(type) || !/^\d+$/.test(n ?? "")) return;
    remember(call);
    panel.hidden = false;
    root.classList.add("open");
    panel.setAttribute("aria-busy", "true");
    try {
      const text = await html(`${root.dataset.address}/${type}/${n}?fragment=true`);
      if (current !== call) return;
      panel.replaceChildren();
      merge(text);
      enableCall(panel);
      highlight(panel, document.getElementById("trace-needle").value);
      panel.focus({ preventScroll: true });
    } catch (error) {
      notify(`The call cannot be loaded: ${error.message}`);
    } finally {
      panel.removeAttribute("aria-busy");
    }
  }

  function close() {
    const call = current;
    panel.hidden = true;
    panel.replaceChildren();
    root.classList.remove("open");
    remember("");
    linkOf(call)?.focus();
  }

  /** Returns the link of the call that is `step` calls away. */
  function neighbour(id, step) {
    const links = [...table.querySelectorAll("a[data-call]")];
    return links[links.findIndex((link) => link.dataset.call === id) + step];
  }

  function step(by) {
    const link = linkOf(current) && neighbour(current, by);
    if (!link) return;
    link.scrollIntoView({ block: "nearest" });
    open(link.dataset.call);
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-close]")) return close();
    const button = event.target.closest("[data-step]");
    if (button) return step(Number(button.dataset.step));
    const link = event.target.closest("a[data-call]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.dataset.call);
    if (!table.contains(link)) reveal(link.dataset.call).catch((error) => notify(error.message));
  });
  table.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const link = event.target.closest("a[data-call]");
    if (!by || !link) return;
    event.preventDefault();
    neighbour(link.dataset.call, by)?.focus();
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });

  let isPlanned = false;
  const plan = () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => {
      isPlanned = false;
      show();
    });
  };
  addEventListener("scroll", plan, { passive: true });
  addEventListener("resize", plan);

  document.getElementById("trace-pages").hidden = true; // scrolling leads to all rows
  layOut();
  if (current) {
    document.getElementById(`row-${current}`)?.scrollIntoView({ block: "center" });
    open(current);
  }
  show();
  enableSearch(root);

  if (root.dataset.live) {
    const showWords = (text) => {
      words = text;
      showState();
    };
    follow(root, upto, () => refresh().catch((error) => notify(`The rows cannot be loaded: ${error.message}`)), showWords);
  }
}

const MARKED = 1000; // places of the text that are marked

/** Marks the places of a text, in any case, and shows the first; text nodes stay as they are. */
function highlight(root, needle) {
  if (!globalThis.Highlight) return;
  const ranges = [];
  const wanted = needle.toLowerCase();
  const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (wanted.length > 1 && nodes.nextNode()) {
    const text = nodes.currentNode.data.toLowerCase();
    if (text.length !== nodes.currentNode.data.length) continue; // letters whose lower case is longer
    for (let at = text.indexOf(wanted); at >= 0 && ranges.length < MARKED; at = text.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(nodes.currentNode, at);
      range.setEnd(nodes.currentNode, at + wanted.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("needle", new Highlight(...ranges));
  const first = ranges[0]?.startContainer.parentElement;
  for (let details = first?.closest("details"); details; details = details.parentElement.closest("details")) details.open = true;
  first?.scrollIntoView({ block: "nearest" });
}

/** Lets a call be copied and shown as JSON, which is fetched then. */
function enableCall(root) {
  for (const button of root.querySelectorAll("[data-copy-raw], [data-step], [data-close]")) {
    button.hidden = !document.getElementById("trace") && !button.hasAttribute("data-copy-raw");
  }
  for (const button of root.querySelectorAll("[data-copy-raw]")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(await raw(button.dataset.copyRaw));
        notify("Copied");
      } catch (error) {
        notify(`It cannot be copied: ${error.message}`);
      }
    });
  }
  for (const details of root.querySelectorAll("details[data-raw]")) {
    details.addEventListener("toggle", async () => {
      const place = details.querySelector("pre");
      if (!details.open || place.textContent) return;
      try {
        const text = await raw(details.dataset.raw);
        const more = text.length - RAW_SHOWN;
        place.textContent = more > 0 ? `${text.slice(0, RAW_SHOWN)}\n… ${more} more characters: copy the JSON` : text;
        place.hidden = false;
      } catch (error) {
        notify(`It cannot be loaded: ${error.message}`);
      }
    });
  }
  localise(root);
}

async function raw(address) {
  return JSON.stringify(JSON.parse(await html(address)), null, 2);
}

/** Searches answers, arguments and results, one part of the log after another, until it is stopped. */
function enableSearch(root) {
  const form = document.getElementById("trace-search");
  const stop = document.getElementById("trace-stop");
  const status = document.getElementById("trace-found");
  const matches = document.getElementById("trace-matches");
  const results = document.getElementById("trace-results");
  const SHOWN = 500;
  let search = 0;
  form.hidden = false;
  stop.addEventListener("click", () => (search += 1));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const own = ++search;
    const needle = document.getElementById("trace-needle").value;
    let after = 0;
    let count = 0;
    let more = true;
    matches.replaceChildren();
    results.hidden = false;
    stop.hidden = false;
    while (more && own === search) {
      try {
        const query = new URLSearchParams({ q: needle, after });
        const found = JSON.parse(await html(`${root.dataset.api}/trace/search?${query}`));
        if (own !== search) break;
        for (const [type, numbers] of [["llm", found.model_call_numbers], ["tool", found.tool_call_numbers]]) {
          for (const n of numbers) {
            if (++count > SHOWN) continue;
            const link = document.createElement("a");
            link.href = `${root.dataset.address}/${type}/${n}`;
            link.dataset.call = `${type}-${n}`;
            link.textContent = `${type === "llm" ? "Model" : "Tool"} ${n}`;
            matches.append(link, " ");
          }
        }
        ({ last: after, more } = found);
        const part = count > SHOWN ? `, the first ${SHOWN} below` : "";
        status.textContent = `${count} calls${part}${more ? `, searched up to entry ${after}…` : ""}`;
      } catch (error) {
        status.textContent = `The search broke off: ${error.message}`;
        break;
      }
    }
    if (own === search || more) stop.hidden = true;
    if (own !== search) status.textContent += " (stopped)";
  });
}
