// An answer as a card: label and scores, tagged spans, an answer in its text, a value, every token's alpha.
//
// Positions in answers count characters as Python does; a JavaScript string counts UTF-16 units, hence Array.from.

import { el, number, percent, plural } from "./elements.js";

const SHOWN_SCORES = 6;
const HUES = 8;
const SPECIAL = /^(\[(CLS|SEP|PAD)\]|<\/?(s|pad|bos|eos)>|<\|.*\|>)$/;

/** What a task answered; `missing` says what it would need. */
export function card(task, answer, missing) {
  const made = el("article", { className: "card", data: { task: task.name } });
  const version = answer?.version ?? task.version;
  made.append(
    el("h3", {}, task.name, el("span", { className: "aside" }, ` @${version}`)),
    el("p", { className: "aside" }, `${task.kind}, ${task.method}`),
  );
  const wrong = answer && !answer.error ? null : answer?.error?.message ?? "No answer.";
  if (missing) made.append(el("p", { className: "missing" }, missing));
  else if (wrong) made.append(el("p", { className: "problem" }, wrong));
  else made.append(...body(answer).filter((part) => part !== null));
  return made;
}

function body(answer) {
  if (Array.isArray(answer.spans)) return [tagged(answer), shading(answer)];
  if ("answer" in answer) return [answered(answer), shading(answer)];
  if ("value" in answer) return [el("p", { className: "said" }, number(answer.value)), shading(answer)];
  if ("label" in answer) return [el("p", { className: "said" }, labelText(answer)), bars(answer), shading(answer)];
  return [el("pre", {}, JSON.stringify(answer, null, 1))];
}

function labelText({ label, score }) {
  const text = Array.isArray(label) ? label.join(", ") || "none of the labels" : label ?? "not sure enough";
  return el("span", {}, text, el("span", { className: "aside" }, ` ${percent(score)}`));
}

function bars({ scores }) {
  if (!scores) return null;
  const sorted = Object.entries(scores).sort(([, a], [, b]) => b - a);
  const list = (some) => el("ul", { className: "bars" }, ...some.map(bar));
  if (sorted.length <= SHOWN_SCORES) return list(sorted);
  const rest = sorted.slice(SHOWN_SCORES);
  const more = el("details", {}, el("summary", {}, `${plural(rest.length, "more label")}`), list(rest));
  return el("div", {}, list(sorted.slice(0, SHOWN_SCORES)), more);
}

function bar([label, score]) {
  const fill = el("span", { className: "fill", ariaHidden: "true" });
  fill.style.setProperty("--share", Math.max(0, Math.min(1, score ?? 0)));
  const name = el("span", { className: "name" }, label);
  return el("li", {}, name, el("span", { className: "score" }, percent(score)), fill);
}

/** A text with some pieces of it marked: [start, end, label, hue, title], in characters. */
function marked(text, pieces) {
  const characters = Array.from(text);
  const cut = (start, end) => characters.slice(start, end).join("");
  const parts = [];
  let at = 0;
  for (const [start, end, label, hue, title] of [...pieces].sort((a, b) => a[0] - b[0])) {
    if (start < at) continue;
    const tag = label ? el("span", { className: "tag" }, label) : null;
    parts.push(cut(at, start), el("mark", { className: `hue-${hue}`, title }, cut(start, end), tag));
    at = end;
  }
  return el("p", { className: "text" }, ...parts, cut(at));
}

function tagged({ text, spans }) {
  const labels = [...new Set(spans.map((span) => span.label))].sort();
  const hue = (label) => labels.indexOf(label) % HUES;
  const pieces = spans.map((s) => [s.start, s.end, s.label, hue(s.label), `${s.label} ${percent(s.score)}`]);
  const nothing = spans.length ? null : el("p", { className: "missing" }, "Nothing found.");
  return el("div", {}, nothing, marked(text ?? "", pieces));
}

function answered({ answer, context, start, end, score }) {
  const said = answer ? answer : "no answer in this text";
  const where = answer && start !== null ? [[start, end, "", 0, percent(score)]] : [];
  const head = el("p", { className: "said" }, said, el("span", { className: "aside" }, ` ${percent(score)}`));
  return el("div", {}, head, marked(context ?? "", where));
}

// ---------------------------------------------------------------- alpha

/** Every token in the shade of its weight; special tokens set no scale, as they are no words of the text. */
function shading({ tokens, alpha }) {
  if (!Array.isArray(tokens) || !Array.isArray(alpha)) return null;
  const words = alpha.filter((_, i) => !SPECIAL.test(tokens[i]));
  const most = Math.max(...words, 1e-9);
  const low = Math.min(...words, most);
  const spread = Math.max(most - low, 1e-9);
  const shades = tokens.map((token, i) => shade(token, alpha[i], (alpha[i] - low) / spread));
  const ramp = el("span", { className: "ramp", ariaHidden: "true" });
  const scale = el("span", { className: "legend" }, number(low), ramp, number(most));
  const legend = el("figcaption", {}, "Shift |α| of each token ", scale);
  const meaning = "How strongly AdapterBias moves each token's representation, averaged over the layers. Darker is stronger.";
  return el("figure", { className: "alpha" }, legend, el("p", { className: "text" }, ...shades), el("p", { className: "aside" }, meaning));
}

function shade(token, alpha, share) {
  const special = SPECIAL.test(token);
  const inner = token.startsWith("##");
  const text = inner ? token.slice(2) : token.replace(/^[Ġ▁]/, "") || token;
  const made = el("span", { className: `token${special ? " special" : ""}`, title: `α ${number(alpha)}` }, text);
  if (!special) made.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(3));
  return el("span", {}, inner ? "" : " ", made);
}
