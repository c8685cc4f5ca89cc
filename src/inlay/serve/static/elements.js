// Elements and numbers for people.
//
// Whatever comes from outside (texts, labels, names, errors) becomes a text node and is never read as HTML.

/** An element with properties and children; strings become text nodes. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { data = {}, ...rest } = properties;
  Object.assign(made, rest);
  Object.assign(made.dataset, data);
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const percent = (share) => (typeof share === "number" ? `${(100 * share).toFixed(1)} %` : "–");
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export function number(value) {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) < 100 ? value.toPrecision(3) : value.toFixed(1);
}
