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
if (trace) {
  showWaterfall(trace);
} else {
  enableCall(document);
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
  let height = table.tBodies[0].rows[0].getBoundingClientRect().height;
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
    document.getElementById("trace-state").textContent = `${total} rows`;
  }

  function empty(part, offset) {
    const row = document.createElement("tr");
    const cell = document.createElement("td");
    row.className = "trace-empty";
    cell.colSpan = 6;
    cell.style.height = `${height * Math.min(size, total - offset)}px`;
    row.append(cell);
    part.replaceChildren(row);
    part.dataset.isEmpty = "true";
  }

  /** Loads the parts that are near the window, and empties those that are far. */
  function show() {
    const near = innerHeight;
    for (const part of table.tBodies) {
      const place = part.getBoundingClientRect();
      const distance = Math.max(place.top - innerHeight, -place.bottom);
      const offset = Number(part.id.slice(5));
      if (distance < near / 2 && part.dataset.isEmpty) load(offset);
      else if (distance > near * 2 && !part.dataset.isEmpty && !part.contains(document.activeElement)) empty(part, offset);
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
    const text = await html(address("/rows", { offset: 0 }));
    version += 1;
    kept.clear();
    const [first] = merge(text);
    total = Number(first.dataset.total);
    upto = first.dataset.upto;
    document.getElementById("trace-axis").textContent = first.dataset.axis;
    layOut();
    for (const part of table.tBodies) {
      const offset = Number(part.id.slice(5));
      if (offset && !part.dataset.isEmpty) {
        const reloaded = await html(address("/rows", { offset, upto }));
        merge(reloaded);
      } else if (part.dataset.isEmpty) empty(part, offset);
    }
    mark();
    show();
  }

  /** Marks the row of the opened call. */
  function mark() {
    for (const link of table.querySelectorAll("a[aria-current]")) link.removeAttribute("aria-current");
    table.querySelector(`a[data-call="${CSS.escape(location.hash.slice(1))}"]`)?.setAttribute("aria-current", "true");
  }

  async function open(call) {
    const [type, n] = call.split("-");
    if (!["llm", "tool"].includes(type) || !/^\d+$/.test(n ?? "")) return;
    history.replaceState(null, "", `#${call}`);
    mark();
    panel.hidden = false;
    root.classList.add("open");
    panel.setAttribute("aria-busy", "true");
    try {
      const text = await html(`${root.dataset.address}/${type}/${n}?fragment=true`);
      if (location.hash !== `#${call}`) return;
      panel.replaceChildren();
      merge(text);
      enableCall(panel);
      panel.focus();
    } catch (error) {
      notify(`The call cannot be loaded: ${error.message}`);
    } finally {
      panel.removeAttribute("aria-busy");
    }
  }

  function close() {
    const call = location.hash.slice(1);
    panel.hidden = true;
    panel.replaceChildren();
    root.classList.remove("open");
    history.replaceState(null, "", location.pathname + location.search);
    table.querySelector(`a[data-call="${CSS.escape(call)}"]`)?.focus();
    mark();
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-close]")) return close();
    const link = event.target.closest("a[data-call]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.dataset.call);
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
  show();
  if (location.hash) open(location.hash.slice(1));
  enableSearch(root);

  if (root.dataset.live) {
    let timer = null;
    new Stream(`${root.dataset.api}/events`, {
      lastId: upto,
      on: {
        event: (_, id) => {
          if (!id || timer) return;
          timer = setTimeout(async () => {
            timer = null;
            await refresh().catch((error) => notify(error.message));
          }, 1000);
        },
        "catchup.overflow": () => refresh(),
        state: (state) => {
          const words = { connected: "live", disconnected: "disconnected, trying again", ended: "ended" };
          document.getElementById("trace-state").textContent = `${total} rows, ${words[state]}`;
        },
      },
    });
  }
}

/** Lets a call be copied and shown as JSON, which is fetched then. */
function enableCall(root) {
  for (const button of root.querySelectorAll("[data-copy-raw], [data-close]")) {
    button.hidden = !document.getElementById("trace") && button.hasAttribute("data-close");
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
        matches.hidden = count === 0;
      } catch (error) {
        status.textContent = `The search broke off: ${error.message}`;
        break;
      }
    }
    if (own === search || more) stop.hidden = true;
    if (own !== search) status.textContent += " (stopped)";
  });
}
