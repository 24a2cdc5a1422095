// What every page does: times in the reader's zone, running clocks, copy buttons, notices.

const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const localTime = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

/** Shows the times below `root` in the reader's zone, of `data-short` without the date; the time in UTC stays as a title. */
export function localise(root = document) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    time.title = time.textContent;
    time.textContent = ("short" in time.dataset ? localTime : local).format(new Date(time.dateTime));
  }
}

/** Returns seconds for people, like the server's `duration`. */
export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const padded = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${padded(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${padded(Math.floor((whole % 3600) / 60))} m`;
}

/** Shows the time since each `data-since` below `root`. */
export function tick(root = document) {
  for (const element of root.querySelectorAll("[data-since]")) {
    element.textContent = duration(Math.max(0, (Date.now() - Date.parse(element.dataset.since)) / 1000));
  }
}

/** Tells the reader something for a few seconds. */
export function notify(text) {
  const notice = document.createElement("div");
  notice.className = "notice";
  notice.textContent = text;
  document.getElementById("notices").append(notice);
  setTimeout(() => notice.remove(), 6000);
}

const sources = new WeakMap();

const FOCUSABLE = "a[href], button, summary, input, select, textarea, [tabindex]";

/** Replaces an element; what has the keyboard's focus within it hands that to its like in the new one. */
function replaceKeepingFocus(present, element) {
  const index = [...present.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  present.replaceWith(element);
  if (index >= 0) element.querySelectorAll(FOCUSABLE)[index]?.focus({ preventScroll: true });
}

/** Replaces, or adds, the elements of `html` that have an id: what stands in the page under that id gives way, unless
 *  the new one is the same, or has `data-keep`. A new element goes to the end of the element that its `data-into`
 *  names. Returns the elements that were put in. */
export function merge(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const elements = [];
  for (const element of [...template.content.children]) {
    const present = element.id && document.getElementById(element.id);
    const source = element.outerHTML;
    if (!element.id || (present && (element.hasAttribute("data-keep") || sources.get(present) === source))) continue;
    sources.set(element, source);
    elements.push(element);
    if (present) {
      const wasOpen = [...present.querySelectorAll("details[open][id]")].map((details) => details.id);
      replaceKeepingFocus(present, element);
      for (const id of wasOpen) document.getElementById(id)?.setAttribute("open", "");
    } else {
      document.getElementById(element.dataset.into)?.append(element);
    }
    localise(element);
    tick(element);
  }
  return elements;
}

/** Sends JSON as the API takes it, and returns the answer. Throws an Error with the API's words if it is refused. */
export async function send(method, path, body = {}, headers = {}) {
  const response = await fetch(path, {
    method,
    headers: { ...headers, "Content-Type": "application/json" },
    body: method === "DELETE" ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  const answer = text ? JSON.parse(text) : {};
  if (!response.ok) {
    const error = new Error(answer.detail ?? `${response.status} ${response.statusText}`);
    error.status = response.status;
    error.faults = answer.errors ?? [];
    throw error;
  }
  return answer;
}

document.getElementById("sign-out")?.addEventListener("click", async () => {
  await send("POST", "/sign-out");
  location.assign("/");
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy || location.href;
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied");
  } catch {
    notify(text); // a page without a secure address may not write to the clipboard
  }
});

localise();
tick();
setInterval(tick, 1000);
