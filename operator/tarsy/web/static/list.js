// The list follows the events of its namespaces: a change fetches the same list anew, once a second at most.

import { localise, notify, tick } from "./page.js";
import { Stream } from "./stream.js";

const EVERY = 1000; // milliseconds
const live = document.getElementById("live");
const state = document.getElementById("live-state");
const words = document.getElementById("live-text");
const icon = state.querySelector("use");
const icons = icon.getAttribute("href").split("#")[0];
const pause = document.getElementById("live-pause");
const shown = new Map(); // the HTML of each keyed element, as it came

let connection = "connecting";
let isPaused = false;
let changes = 0;
let isFetching = false;
let isDue = false;
let last = -Infinity;
let timer = 0;

/** Shows how the list stands: connected, disconnected, or paused with the number of changes. */
function showState() {
  const looks = {
    connected: ["good", "check", "Live"],
    disconnected: ["bad", "warning", "Disconnected, trying again"],
    ended: ["bad", "cross", "Ended: load the page again"],
    connecting: ["idle", "clock", "Connecting"],
  };
  let [tone, sign, text] = looks[connection];
  if (isPaused && connection === "connected") {
    [tone, sign, text] = ["warn", "pause", changes ? `Paused, ${changes} ${changes === 1 ? "change" : "changes"}` : "Paused"];
  }
  state.className = `badge ${tone}`;
  icon.setAttribute("href", `${icons}#${sign}`);
  if (words.textContent !== text) words.textContent = text;
  pause.textContent = isPaused ? "Resume" : "Pause";
}

/** Fetches the list soon, and once for all changes until then. */
function schedule() {
  isDue = true;
  if (isPaused || isFetching || timer || document.hidden) return;
  timer = setTimeout(refresh, Math.max(0, last + EVERY - performance.now()));
}

async function refresh() {
  timer = 0;
  if (isPaused || document.hidden) return;
  isFetching = true;
  isDue = false;
  last = performance.now();
  try {
    const response = await fetch(`/fragments/investigations${location.search}`);
    if (response.ok) {
      const text = await response.text();
      if (isPaused) isDue = true; // it was asked for before the pause
      else apply(text);
    } else if (response.status === 401 || response.status === 403) end();
    else isDue = true;
  } catch {
    isDue = connection === "connected"; // else a new connection fetches it
  }
  isFetching = false;
  if (isDue) schedule();
}

function end() {
  stream.end();
  notify("You are no longer signed in, or may not read this list any more: load the page again.");
}

/** Brings the page to the state of a fragment: elements of a list by their ids, all others as a whole. */
function apply(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const focused = document.activeElement?.id;
  for (const part of template.content.querySelectorAll("#counts, #unchecked, #nothing, #pages")) replace(part);
  for (const [section, list] of [["active", "cards"], ["history", "rows"]]) {
    const fresh = template.content.getElementById(section);
    const present = document.getElementById(section);
    reconcile(document.getElementById(list), template.content.getElementById(list));
    present.hidden = fresh.hidden;
    for (const selector of ["h2", ":scope > p"]) {
      const [before, after] = [present.querySelector(selector), fresh.querySelector(selector)];
      if (before && after) before.replaceWith(after);
      else if (after) present.append(after);
      else before?.remove();
    }
  }
  if (focused && !document.activeElement?.id) document.getElementById(focused)?.focus({ preventScroll: true });
}

function replace(part) {
  const html = part.outerHTML;
  if (shown.get(part.id) === html) return;
  shown.set(part.id, html);
  document.getElementById(part.id).replaceWith(part);
}

/** Makes the children of `list` those of `fresh`, in their order; a child that is the same keeps its element. */
function reconcile(list, fresh) {
  const wanted = [...fresh.children];
  const ids = new Set(wanted.map((child) => child.id));
  for (const child of [...list.children]) {
    if (!ids.has(child.id)) {
      shown.delete(child.id);
      child.remove();
    }
  }
  wanted.forEach((child, index) => {
    const html = child.outerHTML;
    let element = document.getElementById(child.id);
    if (!element || shown.get(child.id) !== html) {
      element?.remove();
      element = child;
      shown.set(child.id, html);
    }
    if (list.children[index] !== element) list.insertBefore(element, list.children[index] ?? null);
    localise(element);
    tick(element);
  });
}

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  changes = 0;
  if (!isPaused && isDue) schedule();
  showState();
});

function changed() {
  if (isPaused) changes += 1;
  schedule();
  showState();
}

const address = live.dataset.query ? `/api/v1/events?${live.dataset.query}` : "/api/v1/events";
live.hidden = false;
const stream = new Stream(address, {
  on: {
    event: changed,
    state: (name) => {
      connection = name;
      if (name === "connected") schedule(); // what has changed before
      showState();
    },
  },
});
showState();
