// The page of an investigation's alerts: takes one out of the group, and opens the investigation that it gets.

import { send } from "./page.js";

const table = document.getElementById("alerts");
const problem = document.getElementById("alerts-error");

table.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-split]");
  if (!button) return;
  problem.textContent = "";
  button.disabled = true;
  try {
    const path = `/api/v1/investigations/${table.dataset.id}/alerts/${button.dataset.split}/investigate`;
    const answer = await send("POST", path);
    location.assign(`/investigations/${answer.id}`);
  } catch (error) {
    problem.textContent = error.message;
    button.disabled = false;
  }
});

document.documentElement.classList.add("has-script"); // a click before would be lost
