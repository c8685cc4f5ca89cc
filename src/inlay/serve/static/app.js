// The playground: asks the service for its tasks, sends a text to some of them, shows the answers.

import { card } from "./answers.js";
import { el, number, plural } from "./elements.js";

const FEW = 10; // more tasks than this are folded away
const FOUND = 60; // chips that a search shows

const $ = (id) => document.getElementById(id);
const state = { tasks: [], chosen: new Set(), all: true, running: null, open: { chips: false, rows: false } };

// ---------------------------------------------------------------- the service

class Problem extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** A call of the service; paths are relative, so that it may live behind a prefix. */
async function call(path, body, signal) {
  const headers = { Accept: "application/json" };
  const key = $("key").value.trim();
  if (/[^\x21-\x7e]/.test(key)) throw new Problem("The API key contains invalid characters.", 401);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const how = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const unless = (error) => {
    if (error.name === "AbortError") throw error; // the next question came first
    return null;
  };
  const response = await fetch(path, { ...how, headers, signal }).catch(unless);
  if (response === null) throw new Problem("The service cannot be reached.");
  const found = await response.json().catch(unless);
  if (response.ok && found !== null) return found;
  const said = found?.error?.message ?? found?.detail ?? response.statusText;
  const message = typeof said === "string" && said ? said : `the service answered with status ${response.status}`;
  throw new Problem(message, response.status, response.headers.get("Retry-After"));
}

function show(error) {
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  $("problem").textContent = error.message + wait;
  $("problem").hidden = false;
  if (error.status === 401 || error.status === 403) $("access").open = true;
}

// ---------------------------------------------------------------- tasks

/** Ask what is served, again and again while the service warms up. */
async function refresh() {
  try {
    await call("ready");
    state.tasks = (await call("v1/tasks")).tasks;
  } catch (error) {
    show(error);
    if (error.status === 503) setTimeout(refresh, 2000);
    return;
  }
  $("problem").hidden = true;
  const names = new Set(state.tasks.map((task) => task.name));
  state.chosen = new Set([...state.chosen].filter((name) => names.has(name)));
  if (!state.chosen.size) state.all = true;
  $("served").textContent = `One frozen base, ${plural(state.tasks.length, "task")}, one pass.`;
  $("filter-field").hidden = state.tasks.length <= FEW;
  showRows();
  showChips();
}

function showRows() {
  const shown = state.open.rows ? state.tasks : state.tasks.slice(0, FEW);
  $("tasks").replaceChildren(...shown.map(taskRow));
  if (!state.tasks.length) $("tasks").append(el("tr", {}, el("td", { colSpan: 7 }, "Nothing is served yet.")));
  fold("more-rows", state.open.rows);
}

/** A button that shows all tasks, or only some of them again. */
function fold(id, open) {
  $(id).hidden = state.tasks.length <= FEW;
  $(id).textContent = open ? "Show fewer" : `Show all ${plural(state.tasks.length, "task")}`;
  $(id).setAttribute("aria-expanded", String(open));
}

const wanted = () => state.tasks.filter((task) => state.all || state.chosen.has(task.name));

/** Which tasks have a chip: all of a few; of many, those that are chosen and those that are looked for. */
function withChips() {
  const sought = $("filter").value.trim().toLowerCase();
  if (state.tasks.length <= FEW) return state.tasks;
  let found = 0;
  return state.tasks.filter((task) => {
    const matches = sought ? task.name.toLowerCase().includes(sought) && ++found <= FOUND : state.open.chips;
    return matches || state.chosen.has(task.name);
  });
}

function showChips() {
  const focused = document.activeElement?.dataset?.name;
  const all = chip(`All ${state.tasks.length}`, "", state.all, (on) => {
    state.all = on || !state.chosen.size;
    if (state.all) state.chosen.clear();
  });
  const others = withChips().map((task) =>
    chip(task.name, task.kind, state.chosen.has(task.name), (on) => {
      if (on) state.chosen.add(task.name);
      else state.chosen.delete(task.name);
      state.all = !state.chosen.size;
    }),
  );
  $("chips").replaceChildren(all, ...others);
  const boxes = [...$("chips").querySelectorAll("input")];
  if (focused !== undefined) (boxes.find((box) => box.dataset.name === focused) ?? boxes[0]).focus();
  fold("more", state.open.chips);
  if ($("filter").value.trim()) $("more").hidden = true;
  showFields();
}

function chip(name, kind, on, change) {
  const box = el("input", { type: "checkbox", checked: on, data: { name } });
  box.addEventListener("change", () => {
    change(box.checked);
    showChips();
  });
  return el("label", { className: "chip" }, box, name, kind ? el("span", { className: "aside" }, kind) : null);
}

/** The second text and the question are there when a chosen task needs them. */
function showFields() {
  for (const [field, some] of [["pair", wanted().filter(compares)], ["question", wanted().filter(asks)]]) {
    $(`${field}-field`).hidden = !some.length;
    const names = some.slice(0, 3).map((task) => task.name).join(", ");
    $(`${field}-for`).textContent = `for ${names}${some.length > 3 ? " …" : ""}`;
  }
}

const asks = (task) => task.kind === "qa";
const compares = (task) => task.pairs && !asks(task);

function taskRow(task) {
  const found = metricsOf(task).map(([name, value]) => el("li", {}, `${name} ${number(value)}`));
  const cells = [
    ["Version", String(task.version)],
    ["Method", el("code", {}, task.method)],
    ["Parameters", parametersOf(task)],
    ["Labels", labelsOf(task)],
    ["Metrics", found.length ? el("ul", {}, ...found) : "–"],
    ["State", stateOf(task)],
  ];
  const kind = el("span", { className: "aside" }, task.kind);
  const name = el("th", { scope: "row", role: "rowheader" }, task.name, " ", kind);
  const row = el("tr", { role: "row" }, name); // said, because on a phone it is no longer laid out as one
  for (const [head, content] of cells) {
    row.append(el("td", { role: "cell", className: head === "Parameters" ? "number" : "", data: { head } }, content));
  }
  return row;
}

function stateOf({ state, error }) {
  const said = error ? "failed" : state;
  return el("span", { className: `state ${said}`, title: error ?? "" }, said);
}

function parametersOf(task) {
  const count = task.parameters?.adapter;
  const share = task.parameters?.share_of_base;
  if (typeof count !== "number") return "–";
  const part = typeof share === "number" ? `${(100 * share).toPrecision(2)}\u00a0%` : "";
  return el("span", {}, count.toLocaleString("en"), " ", el("span", { className: "aside" }, part));
}

function labelsOf(task) {
  const plain = (task.labels ?? []).filter((label) => task.kind !== "tagging" || label !== "O");
  const labels = [...new Set(plain.map((label) => (task.kind === "tagging" ? label.replace(/^[BI]-/, "") : label)))];
  if (asks(task) || task.kind === "regression" || !labels.length) return "–";
  if (labels.length <= 4) return labels.join(", ");
  const first = labels.slice(0, 3).join(", ");
  return el("details", {}, el("summary", {}, `${first} and ${labels.length - 3} more`), labels.slice(3).join(", "));
}

/** The measures of the first split that has some, the deciding one first; three at most. */
function metricsOf(task) {
  const splits = Object.values(task.metrics ?? {});
  const flat = splits.find((one) => one && typeof one === "object") ?? task.metrics ?? {};
  const all = Object.entries(flat).filter(([, value]) => typeof value === "number");
  return all.sort(([a], [b]) => (b === task.metric) - (a === task.metric)).slice(0, 3);
}

// ---------------------------------------------------------------- asking

/** One item for each form of input; tasks whose second input is missing are answered here. */
function requests() {
  const [text, pair, question] = ["text", "pair", "question"].map((id) => $(id).value);
  const found = { plain: [], pairs: [], asking: [] };
  const missing = {};
  for (const task of wanted()) {
    if (asks(task) && !question.trim()) missing[task.name] = "It answers questions: ask one above.";
    else if (asks(task)) found.asking.push(task.name);
    else if (compares(task) && !pair.trim()) missing[task.name] = "It compares two texts: give a second one above.";
    else (compares(task) ? found.pairs : found.plain).push(task.name);
  }
  const items = [
    { tasks: found.plain, text, explain: true },
    { tasks: found.pairs, text, pair, explain: true },
    { tasks: found.asking, question, context: text, explain: true },
  ];
  return { items: items.filter((item) => item.tasks.length), missing };
}

async function ask() {
  if (!$("text").value.trim()) {
    $("text").focus();
    return show(new Problem("Enter a text first."));
  }
  state.running?.abort();
  const running = (state.running = new AbortController());
  $("answers").setAttribute("aria-busy", "true");
  $("status").textContent = "Asking …";
  const began = performance.now();
  try {
    const { items, missing } = requests();
    const said = items.length ? await call("v1/predict", { requests: items }, running.signal) : { results: [] };
    const took = performance.now() - began;
    $("problem").hidden = true;
    showAnswers(gathered(items, said.results), missing, took, said);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("status").textContent = "";
    show(error instanceof Problem ? error : new Problem(`The answer could not be shown: ${error.message}`));
  }
  if (state.running === running) {
    state.running = null;
    $("answers").removeAttribute("aria-busy");
  }
}

/** task -> its answer; an item that failed as a whole failed for all its tasks. */
function gathered(items, results) {
  const found = {};
  items.forEach((item, i) => {
    for (const name of item.tasks) found[name] = results[i].results?.[name] ?? { error: results[i].error };
  });
  return found;
}

function showAnswers(answers, missing, took, { ms, batch }) {
  const cards = wanted().map((task) => card(task, answers[task.name], missing[task.name]));
  $("answers").replaceChildren(...cards);
  for (const text of $("answers").querySelectorAll(".text")) {
    if (text.scrollHeight > text.clientHeight) text.tabIndex = 0; // the keyboard scrolls what has the focus
  }
  const given = Object.values(answers).filter((answer) => !answer.error).length;
  const parts = [`${plural(given, "answer")} in ${Math.round(took)} ms`];
  if (typeof ms === "number") parts.push(`${Math.round(ms)} ms of it in the service`);
  if (batch) parts.push(`batch of ${batch}`);
  $("status").textContent = parts.join(" · ");
  const { top, bottom } = $("answers-title").getBoundingClientRect();
  const low = matchMedia("(max-width: 44rem)").matches ? 0.4 * innerHeight : innerHeight - 200;
  if (top > low || bottom < 0) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    $("answers-title").scrollIntoView({ block: "start", behavior: calm ? "instant" : "smooth" });
  }
}

// ---------------------------------------------------------------- start

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
for (const id of ["text", "pair"]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
}
$("filter").addEventListener("input", showChips);
$("more").addEventListener("click", () => {
  state.open.chips = !state.open.chips;
  showChips();
});
$("more-rows").addEventListener("click", () => {
  state.open.rows = !state.open.rows;
  showRows();
});
$("filter").addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault();
});
$("key").value = sessionStorage.getItem("inlay key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("inlay key", $("key").value.trim());
  refresh();
});
$("refresh").addEventListener("click", refresh);
refresh();
