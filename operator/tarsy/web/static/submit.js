// The form of an alert: the chain as one types, the selection of tools, refusals at their fields.

import { merge, send } from "./page.js";

const PAUSE_MS = 250;
const form = document.getElementById("submit");
const type = form.elements.alert_type;
const namespace = form.elements.namespace;
const button = document.getElementById("send");
let timer = 0;
let latest = 0;
let attempt = { body: "", number: 0 };

/** Shows the chain that would take the alert, and what the alert may select; ticks that still exist stay. */
async function match() {
  const number = ++latest;
  const changed = new Map(
    [...boxes()].filter((box) => box.checked !== box.defaultChecked).map((box) => [identify(box), box.checked]),
  );
  try {
    const query = new URLSearchParams({ alert_type: type.value, namespace: namespace.value });
    const response = await fetch(`/submit/match?${query}`);
    if (!response.ok || number !== latest) return;
    merge(await response.text());
  } catch {
    return; // the match is a help: submitting says what is wrong
  }
  for (const box of boxes()) if (changed.has(identify(box))) box.checked = changed.get(identify(box));
  tellSelection();
}

function boxes() {
  return document.querySelectorAll("#selection input[type=checkbox]");
}

function identify(box) {
  return JSON.stringify([box.name, box.closest("[data-server]")?.dataset.server, box.value]);
}

/** Returns `mcp` of the alert; null if the selection is as the chain has it. */
function selection() {
  const mcp = {};
  const isChanged = (box) => box.checked !== box.defaultChecked;
  const isOfServers = (box) => box.name !== "native";
  if ([...boxes()].some((box) => isOfServers(box) && isChanged(box))) {
    mcp.servers = [];
    for (const server of document.querySelectorAll("#selection [data-server]")) {
      const tools = [...server.querySelectorAll("[name=tool]")];
      const ticked = tools.filter((box) => box.checked).map((box) => box.value);
      if (!server.querySelector("[name=server]").checked || (tools.length && !ticked.length)) continue;
      const name = server.dataset.server;
      mcp.servers.push(ticked.length === tools.length ? { name } : { name, tools: ticked });
    }
  }
  const off = [...boxes()].filter((box) => box.name === "native" && !box.checked);
  if (off.length) mcp.native_tools = Object.fromEntries(off.map((box) => [box.value, false]));
  return Object.keys(mcp).length ? mcp : null;
}

function tellSelection() {
  const text = selection() ? "changed for this alert" : "as the chain has them";
  document.getElementById("selection-state").textContent = text;
}

/** Returns the runbook of data that is a JSON object with one, as the API reads it there. */
function runbookOf(data) {
  try {
    const runbook = JSON.parse(data)?.runbook;
    return typeof runbook === "string" ? runbook : "";
  } catch {
    return "";
  }
}

/** Returns the alert. Data is sent as it is typed: numbers of JSON keep all their digits. */
function alert() {
  const { data, runbook, severity } = form.elements;
  const body = { alert_type: type.value, data: data.value };
  const url = runbook.value.trim() || runbookOf(data.value);
  if (url) body.runbook = url;
  if (severity.value.trim()) body.severity = severity.value.trim();
  const mcp = selection();
  if (mcp) body.mcp = mcp;
  return body;
}

function clearRefusal() {
  document.getElementById("match").hidden = false;
  for (const text of form.querySelectorAll(".field-error, #form-error")) {
    text.hidden = true;
    text.textContent = "";
  }
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

/** Shows what is wrong at its field, the rest above the button. */
function refuse(error) {
  const rest = [];
  let first = null;
  for (const { place, message } of error.faults ?? []) {
    const field = place.split(".")[0];
    const text = document.getElementById(`${field}-error`);
    if (!text) {
      rest.push(`${place}: ${message}`);
      continue;
    }
    const label = place === field || message.startsWith(place) ? message : `${place}: ${message}`;
    text.textContent = text.textContent ? `${text.textContent}; ${label}` : label;
    text.hidden = false;
    const input = form.elements[field];
    input?.setAttribute("aria-invalid", "true");
    if (field === "alert_type") document.getElementById("match").hidden = true; // it says the same
    if (field === "mcp") document.getElementById("tools").open = true;
    first ??= input ?? document.querySelector("#tools summary");
  }
  if (!first && !rest.length) rest.push(error.message);
  if (rest.length) {
    const text = document.getElementById("form-error");
    text.textContent = rest.join("; ");
    text.hidden = false;
  }
  first?.focus();
}

/** Opens the second page; a caller that may not read its investigation is told here that it was accepted. */
async function follow(queued) {
  const address = `/submitted/${encodeURIComponent(queued.alert_id)}`;
  const page = await fetch(`${address}/state`);
  if (page.ok) {
    location.assign(address);
    return;
  }
  const name = `${queued.namespace}/${queued.name}`;
  document.getElementById("sending").textContent = `${queued.message}: ${name}. You may not read it here.`;
  button.disabled = false;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (button.disabled) return;
  clearRefusal();
  const body = alert();
  const address = `/api/v1/alerts?namespace=${encodeURIComponent(namespace.value)}`;
  const text = address + JSON.stringify(body);
  // One key for one alert: a second click makes no second investigation, and a corrected alert is another one.
  if (text !== attempt.body) attempt = { body: text, number: attempt.number + 1 };
  button.disabled = true;
  document.getElementById("sending").textContent = "Submitting...";
  try {
    const headers = { "Idempotency-Key": `${form.dataset.key}-${attempt.number}` };
    await follow(await send("POST", address, body, headers));
  } catch (error) {
    document.getElementById("sending").textContent = "";
    button.disabled = false;
    refuse(error);
  }
});

// A page that comes back from the browser's history can be sent again; its key makes that harmless.
addEventListener("pageshow", () => {
  button.disabled = false;
  document.getElementById("sending").textContent = "";
});
type.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(match, PAUSE_MS);
});
namespace.addEventListener("change", match);
document.getElementById("tools").addEventListener("change", tellSelection);
if (type.value) match();
