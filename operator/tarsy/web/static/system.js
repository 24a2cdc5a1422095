// The page of TARSy itself: its parts are loaded anew while it is seen, and a changed tool can be accepted.

import { merge, notify, send } from "./page.js";

const SECONDS = 10;
const shown = new Map();
let timer = 0;

/** Loads all parts, and replaces those that have changed; a part that the reader is in stays as it is. */
async function load({ isForced = false } = {}) {
  clearTimeout(timer);
  try {
    const response = await fetch("/system/parts");
    if (response.ok) {
      const template = document.createElement("template");
      template.innerHTML = await response.text();
      for (const part of template.content.querySelectorAll("section[id]")) {
        const html = part.outerHTML;
        const isInUse = document.getElementById(part.id)?.contains(document.activeElement);
        if (shown.get(part.id) === html || (isInUse && !isForced)) continue;
        shown.set(part.id, html);
        merge(html);
      }
    }
  } catch {
    // The next load tries again.
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(load, SECONDS * 1000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-accept]");
  if (!button) return;
  const { accept, tool, hash } = button.dataset;
  button.disabled = true;
  try {
    const path = `/api/v1/system/mcp-servers/${encodeURIComponent(accept)}/accept`;
    const { tools } = await send("POST", path, { tools: { [tool]: hash } });
    notify(tools.length ? `Accepted ${tool} of ${accept}` : `${tool} of ${accept} was accepted already`);
  } catch (error) {
    notify(error.message);
    button.disabled = false;
  }
  await load({ isForced: true });
});

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) load();
});
timer = setTimeout(load, SECONDS * 1000);
