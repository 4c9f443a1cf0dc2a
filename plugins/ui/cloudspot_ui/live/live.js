"use strict";
// Keeps a page up to date. This site's own server renders and escapes all HTML that arrives.

const MAX_LINES = 5000;

function keep(element) {
  // Return the reader's choices in the element before it is replaced.
  return {
    checked: [...element.querySelectorAll("input:checked")].map((one) => [one.name, one.value]),
    open: [...element.querySelectorAll("details")].map((one) => one.open),
    scrolled: [...element.querySelectorAll(".wide, .lanes, .log")].map((one) => [
      one.scrollLeft, one.scrollTop, one.scrollTop + one.clientHeight >= one.scrollHeight - 4]),
    focused: element.contains(document.activeElement) ? path(element, document.activeElement) : null,
  };
}

function path(root, element) {
  const tag = element.tagName.toLowerCase();
  return [tag, [...root.querySelectorAll(tag)].indexOf(element)];
}

function put(element, html) {
  const kept = keep(element);
  element.innerHTML = html;
  for (const [name, value] of kept.checked) {
    for (const one of element.querySelectorAll("input")) {
      if (one.name === name && one.value === value) one.checked = true;
    }
  }
  element.querySelectorAll("details").forEach((one, number) => { one.open = kept.open[number] || false; });
  element.querySelectorAll(".wide, .lanes, .log").forEach((one, number) => {
    const [left, top, atEnd] = kept.scrolled[number] || [0, 0, true];
    one.scrollLeft = left;
    one.scrollTop = atEnd && one.classList.contains("log") ? one.scrollHeight : top;
  });
  if (kept.focused) {
    const again = element.querySelectorAll(kept.focused[0])[kept.focused[1]];
    if (again) again.focus({ preventScroll: true });
  }
}

function addLines(log, lines) {
  const follow = document.getElementById("follow");
  for (const { head, text } of lines) {
    const soft = document.createElement("span");
    soft.className = "soft";
    soft.textContent = head;
    log.append(soft, " " + text + "\n");
  }
  while (log.childNodes.length > 2 * MAX_LINES) log.firstChild.remove();
  if (follow === null || follow.checked) log.scrollTop = log.scrollHeight;
}

function say(text) {
  const status = document.getElementById("connection");
  if (status !== null && status.textContent !== text) status.textContent = text;
}

for (const element of document.querySelectorAll("[data-events]")) {
  const source = new EventSource(element.dataset.events);
  source.onopen = () => say(", live");
  source.onerror = () => say(source.readyState === EventSource.CLOSED ? ", not live any more" : ", connecting again");
  source.addEventListener("parts", (event) => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) {
      const part = document.getElementById(name);
      if (part !== null) put(part, html);
    }
  });
  source.addEventListener("begin", () => { element.textContent = ""; });
  source.addEventListener("lines", (event) => addLines(element, JSON.parse(event.data)));
  source.addEventListener("problem", (event) => say(", " + JSON.parse(event.data)));
  source.addEventListener("end", () => { source.close(); say(", over"); });
}
for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;
