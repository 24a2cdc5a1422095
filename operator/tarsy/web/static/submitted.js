// The progress of a submitted alert: the page's part that changes is loaded anew whenever its investigation changes.

import { merge } from "./page.js";
import { Stream } from "./stream.js";

const PAUSE_MS = 150;
const { id } = document.getElementById("submitted").dataset;
const connection = document.getElementById("connection");
let timer = 0;
let isLoading = false;
let isStale = false;

const hasEnded = () => document.getElementById("state").dataset.ended === "yes";

async function load() {
  timer = 0;
  if (isLoading) {
    isStale = true;
    return;
  }
  isLoading = true;
  isStale = false;
  try {
    const response = await fetch(`/submitted/${encodeURIComponent(id)}/state`);
    if (response.ok) {
      merge(await response.text());
      announce();
    } else connection.textContent = `This page cannot be updated (${response.status}): load it again.`;
  } catch {
    connection.textContent = "Disconnected: trying again.";
  }
  isLoading = false;
  if (hasEnded()) stream?.end();
  else if (isStale) change();
}

/** Says the heading and the step to those who hear the page, when one of them is new. */
function announce() {
  const announcement = document.getElementById("announcement");
  const texts = [...document.querySelectorAll("#state > h1, #state > p > strong")].map((element) => element.textContent);
  const text = texts.join(" ");
  if (announcement.textContent !== text) announcement.textContent = text;
}

function change() {
  timer ||= setTimeout(load, PAUSE_MS);
}

const stream = hasEnded()
  ? null
  : new Stream(`/api/v1/investigations/${encodeURIComponent(id)}/events`, {
      on: {
        state(state) {
          connection.textContent = state === "disconnected" ? "Disconnected: trying again." : "";
          if (state === "connected") change();
        },
        "stream.chunk"() {},
        "subscription.ended"(message) {
          stream.end();
          connection.textContent = message.reason ?? "No more updates.";
        },
        event: change,
      },
    });
