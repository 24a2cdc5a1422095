// The page of an investigation: follows its live events, and acts on it.

import { merge, send } from "./page.js";
import { Stream } from "./stream.js";

const SHOWN_MAX = 100_000; // characters of a text in the making
const BIDI = /[\u202a-\u202e\u2066-\u2069]/g;
const RETRY_MS = 2000;

const root = document.getElementById("investigation");
const id = root.dataset.id;
const api = `/api/v1/investigations/${id}`;
const byId = (name) => document.getElementById(name);
const position = () => byId("position").dataset;

let last = Number(position().last);
let stream = null;
let timer = null;
let isLoading = false;
let isDue = false;
let fromBeginning = false;

// Texts in the making: by the id of their event.

const texts = new Map();

function append(message) {
  const text = texts.get(message.event_id);
  if (!text) return;
  if (message.offset === text.length) text.content += message.delta;
  else text.content = Array.from(text.content).slice(0, message.offset).join("") + message.delta;
  text.length = message.offset + Array.from(message.delta).length;
  show(message.event_id);
}

function begin(event) {
  texts.set(event.id, { event, content: event.content, length: Array.from(event.content).length });
  show(event.id);
}

function discard(name) {
  texts.delete(name);
  // The commit that takes its place arrives right after it.
  setTimeout(() => {
    if (!texts.has(name)) document.querySelector(`.making[id="${CSS.escape(`event-${name}`)}"]`)?.remove();
  }, 500);
}

/** Shows a text in the making at its place, if the page has that already. */
function show(name) {
  const text = texts.get(name);
  let element = byId(`event-${name}`);
  if (element && !element.classList.contains("making")) {
    texts.delete(name); // it is committed
    return;
  }
  const { execution, type } = text.event;
  if (!element) {
    const part = /^(.+)\.(result|summary)$/.exec(name);
    const place = (part && byId(`parts-${part[1]}`)) || byId(`events-${execution}`);
    const template = byId(`making-${type}`);
    if (!place || !template) {
      refresh();
      return;
    }
    element = template.content.firstElementChild.cloneNode(true);
    element.id = `event-${name}`;
    place.append(element);
  }
  const content = text.content.length > SHOWN_MAX ? `…${text.content.slice(-SHOWN_MAX)}` : text.content;
  element.querySelector(".making-text").textContent = content.replace(BIDI, "\ufffd");
  follow(element);
}

// Fragments: one request for all that has changed.

function refresh() {
  isDue = true;
  if (timer === null && !isLoading) timer = setTimeout(load, 150);
}

async function load() {
  timer = null;
  isLoading = true;
  isDue = false;
  if (fromBeginning) last = Number(root.dataset.after);
  fromBeginning = false;
  const after = last;
  let pause = 150;
  try {
    const response = await fetch(`/investigations/${id}/fragment?after=${after}`);
    if (response.status === 401 || response.status === 403 || response.status === 404) {
      stream?.end();
      state("Live updates have ended: load the page again.", true);
      isLoading = false;
      return;
    }
    if (!response.ok) throw new Error(response.statusText);
    const elements = merge(await response.text());
    last = Math.max(after, Number(position().last));
    for (const name of [...texts.keys()]) show(name);
    const changed = elements.filter((element) => element.id.startsWith("event-"));
    if (after) follow(changed.at(-1));
    if (position().more === "true") isDue = true;
    shown();
  } catch {
    isDue = true;
    pause = RETRY_MS;
  }
  isLoading = false;
  if (isDue) timer = setTimeout(load, pause);
}

function state(text, isStale = false) {
  byId("live-state").textContent = text;
  root.classList.toggle("is-stale", isStale);
}

function open() {
  if (stream) return;
  const timeline = (message) => {
    const event = message.event;
    if (event.seq !== undefined) {
      if (message.id !== undefined) refresh();
    } else if (event.status === "streaming") begin(event);
    else discard(event.id);
  };
  const changed = (message) => {
    if (message.id !== undefined || message.type === "investigation.status") refresh();
  };
  stream = new Stream(`${api}/events`, {
    lastId: String(last),
    on: {
      "timeline_event.created": timeline,
      "timeline_event.completed": timeline,
      "stream.chunk": append,
      "catchup.overflow": () => {
        fromBeginning = true;
        refresh();
      },
      "subscription.ended": (message) => {
        stream.end();
        state(`Live updates have ended: ${message.reason}`, true);
      },
      event: changed,
      state: (now) => {
        if (now === "connected") {
          state(byId("head").dataset.ended === "true" ? "" : "Live");
          refresh();
        } else if (now === "disconnected") state("Disconnected: trying again", true);
      },
    },
  });
}

/** Loads the rest of a long timeline, then follows it. */
function followEvents() {
  if (position().more === "true") refresh();
  open();
}

// Following: the newest change stays in view until the reader scrolls.

const followButton = byId("follow");
let isFollowing = false;

function setFollowing(value) {
  isFollowing = value;
  followButton.setAttribute("aria-pressed", String(value));
}

function follow(element) {
  if (!isFollowing || !element) return;
  const instant = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: instant ? "instant" : "smooth" });
}

followButton.addEventListener("click", () => {
  setFollowing(!isFollowing);
  follow([...document.querySelectorAll(".making, .event")].at(-1));
});
for (const type of ["wheel", "touchmove"]) addEventListener(type, () => setFollowing(false), { passive: true });
addEventListener("keydown", (event) => {
  if (["PageUp", "ArrowUp", "Home"].includes(event.key)) setFollowing(false);
});

// Actions.

const verdicts = [...document.querySelectorAll("[data-verdict]")];

function shown() {
  const head = byId("head").dataset;
  const isEnded = head.ended === "true";
  byId("cancel").hidden = isEnded;
  byId("cancel").disabled = head.phase === "Cancelling";
  byId("retry").hidden = !isEnded;
  byId("feedback").hidden = !isEnded;
  const mine = byId("feedback-given").dataset.mine;
  byId("feedback-withdraw").hidden = !mine;
  for (const button of verdicts) button.setAttribute("aria-pressed", String(button.dataset.verdict === mine));
  followButton.hidden = isEnded && position().openQuestion !== "true";
  if (stream && isEnded && byId("live-state").textContent === "Live") state("");
  const takes = position().takesQuestions === "true";
  byId("ask").hidden = !takes;
  byId("chat-closed").hidden = takes;
  const isOpen = position().openQuestion === "true";
  byId("ask-send").disabled = isOpen;
  byId("ask-stop").hidden = !isOpen;
}

/** Runs an action; what the API refuses stands in the element `place`, in its words. */
async function act(button, place, action) {
  button.disabled = true;
  byId(place).textContent = "";
  try {
    await action();
  } catch (error) {
    const faults = (error.faults ?? []).map((fault) => fault.message ?? fault.detail).filter(Boolean);
    byId(place).textContent = [error.message, ...faults].join(": ");
  }
  button.disabled = false;
}

const dialog = byId("cancel-dialog");
byId("cancel").addEventListener("click", () => {
  byId("cancel-error").textContent = "";
  dialog.showModal();
});
byId("cancel-no").addEventListener("click", () => dialog.close());
byId("cancel-yes").addEventListener("click", (event) =>
  act(event.currentTarget, "cancel-error", async () => {
    await send("POST", `${api}/cancel`);
    dialog.close();
    followEvents();
    refresh();
  }),
);

const retryDialog = byId("retry-dialog");
byId("retry").addEventListener("click", () => {
  byId("retry-error").textContent = "";
  retryDialog.showModal();
});
byId("retry-no").addEventListener("click", () => retryDialog.close());
byId("retry-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act(byId("retry-yes"), "retry-error", async () => {
    const chosen = byId("retry-from").value;
    let request = {};
    if (chosen === "current") request = { chain: "current" };
    else if (chosen) request = { fromStage: chosen.slice("stage:".length) };
    const answer = await send("POST", `${api}/retry`, request);
    location.assign(`/investigations/${answer.id}`);
  });
});

for (const button of verdicts) {
  button.addEventListener("click", () =>
    act(button, "feedback-error", async () => {
      const [cause, note] = ["feedback-cause", "feedback-note"].map((name) => byId(name).value);
      await send("POST", `${api}/feedback`, { verdict: button.dataset.verdict, cause, note });
      refresh();
    }),
  );
}
byId("feedback-withdraw").addEventListener("click", (event) =>
  act(event.currentTarget, "feedback-error", async () => {
    await send("DELETE", `${api}/feedback`);
    for (const name of ["feedback-cause", "feedback-note"]) byId(name).value = "";
    refresh();
  }),
);

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  act(byId("ask-send"), "ask-error", async () => {
    const field = byId("question");
    await send("POST", `${api}/chat`, { question: field.value });
    field.value = "";
    position().openQuestion = "true";
    followEvents();
    refresh();
  }).then(shown);
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
});
byId("ask-stop").addEventListener("click", (event) =>
  act(event.currentTarget, "ask-error", async () => {
    await send("POST", `${api}/chat/cancel`);
    refresh();
  }),
);

// A reference to a tool call leads to the call on this page, if it is there.
document.addEventListener("click", (event) => {
  const link = event.target.closest(`a[href^="/investigations/${id}/event?id="]`);
  if (!link || link.hasAttribute("data-whole")) return;
  const name = `event-${new URL(link.href).searchParams.get("id")}`;
  if (!byId(name)) return;
  event.preventDefault();
  location.hash = name;
});

// A link to an event leads into a stage that is folded, and no newer change scrolls away from it.
function reveal() {
  const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (!target) return false;
  setFollowing(false);
  for (let element = target.closest("details"); element; element = element.parentElement?.closest("details")) {
    element.open = true;
  }
  target.scrollIntoView({ block: "nearest" });
  return true;
}
addEventListener("hashchange", reveal);
const isAtEvent = reveal();

// More of a long timeline comes to this page.
document.addEventListener("click", (event) => {
  if (!event.target.closest("#more a")) return;
  event.preventDefault();
  followEvents();
});

for (const element of document.querySelectorAll("[data-script]")) element.hidden = false;
shown();
const hasEnded = byId("head").dataset.ended === "true" && position().openQuestion !== "true";
if (!hasEnded || position().more !== "true") open();
if (!hasEnded) {
  setFollowing(!isAtEvent);
  if (position().more === "true") refresh();
}
