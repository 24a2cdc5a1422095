// Deletes, restores, holds and purges an investigation, after a confirmation.

import { send } from "./page.js";

const byId = (name) => document.getElementById(name);
const dialog = byId("deletion-dialog");
const api = `/api/v1/investigations/${dialog.dataset.id}`;

const ACTIONS = {
  delete: {
    title: "Delete this investigation?",
    text: "Its transcript is hidden, and its object is deleted. The transcript can be restored until it is purged.",
    yes: "Delete it",
    send: () => send("DELETE", api),
  },
  restore: {
    title: "Restore this investigation?",
    text: "Its transcript can be read again. Its object does not come back.",
    yes: "Restore it",
    send: () => send("POST", `${api}/restore`),
  },
  hold: {
    title: "Hold this investigation?",
    text: "Nothing of it is deleted until the hold ends. Its readers see the reason.",
    yes: "Hold it",
    send: () => send("POST", `${api}/hold`, { reason: byId("deletion-reason").value }),
  },
  release: {
    title: "End the hold?",
    text: "From then on it may be deleted, by requests and by retention.",
    yes: "End the hold",
    send: () => send("DELETE", `${api}/hold`),
  },
  purge: {
    title: "Purge this investigation for good?",
    text: "Its transcript and its object are deleted. Nothing brings them back.",
    yes: "Purge it for good",
    send: () => send("DELETE", `${api}?purge=true`),
  },
};

let chosen = null;

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-deletion]");
  if (!button) return;
  chosen = button.dataset.deletion;
  const action = ACTIONS[chosen];
  byId("deletion-title").textContent = action.title;
  byId("deletion-text").textContent = action.text;
  byId("deletion-yes").textContent = action.yes;
  byId("deletion-yes").className = ["delete", "purge"].includes(chosen) ? "danger" : "primary";
  byId("deletion-error").textContent = "";
  byId("deletion-reason-field").hidden = chosen !== "hold";
  byId("deletion-reason").required = chosen === "hold";
  dialog.showModal();
});

byId("deletion-no").addEventListener("click", () => dialog.close());

byId("deletion-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("deletion-yes").disabled = true;
  byId("deletion-error").textContent = "";
  try {
    await ACTIONS[chosen].send();
    if (chosen === "purge") location.assign("/");
    else location.reload();
  } catch (error) {
    const faults = (error.faults ?? []).map((fault) => fault.message ?? fault.detail).filter(Boolean);
    byId("deletion-error").textContent = [error.message, ...faults].join(": ");
    byId("deletion-yes").disabled = false;
  }
});

document.documentElement.classList.add("has-script"); // a click before would be lost
