// A page about the HTTP interface, made from the service's own OpenAPI document.

import { el } from "./elements.js";

const $ = (id) => document.getElementById(id);
const last = (ref) => ref.split("/").pop();

/** What a schema allows, in a few words; names of bodies are links to them. */
function type(schema) {
  if (!schema) return ["anything"];
  if (schema.$ref) return [el("a", { href: `#${last(schema.$ref)}` }, last(schema.$ref))];
  if (schema.anyOf) return schema.anyOf.flatMap((one, i) => (i ? [" or ", ...type(one)] : type(one)));
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(" or ")];
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.type === "array") return ["list of ", ...type(schema.items)];
  return [schema.type ?? "anything"];
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, one]) => {
    const said = [one.description, "default" in one ? `Default: ${JSON.stringify(one.default)}.` : null];
    const needed = schema.required?.includes(name) ? " (required)" : "";
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("code", {}, name), el("span", { className: "aside" }, needed)),
      el("td", {}, ...type(one)),
      el("td", {}, said.filter(Boolean).join(" ")),
    );
  });
  return el("div", { className: "wide" }, el("table", {}, el("tbody", {}, ...rows)));
}

function operation(path, method, one) {
  const id = `${method}-${path}`;
  const needs = one.security ? (one.security.some((way) => !Object.keys(way).length) ? "" : " Takes a key.") : "";
  const made = el("section", { id });
  made.append(el("h2", {}, el("code", {}, `${method.toUpperCase()} ${path}`)), el("p", {}, one.description + needs));
  for (const [kind, { schema }] of Object.entries(one.requestBody?.content ?? {})) {
    const optional = one.requestBody.required ? "" : " (optional)";
    made.append(el("p", {}, `Body${optional}: `, ...type(schema), ` as ${kind}`));
  }
  const answers = Object.entries(one.responses).filter(([status]) => status !== "422" || one.requestBody);
  const rows = answers.map(([status, answer]) => {
    const [kind, content] = Object.entries(answer.content ?? {})[0] ?? [];
    const what = content ? [...type(content.schema), ` as ${kind}`] : [];
    const said = answer.description === "Successful Response" ? "Success." : answer.description;
    return el("tr", {}, el("th", { scope: "row" }, status), el("td", {}, said), el("td", {}, ...what));
  });
  made.append(el("div", { className: "wide" }, el("table", {}, el("tbody", {}, ...rows))));
  return made;
}

async function show() {
  const found = await (await fetch("openapi.json")).json();
  $("about").textContent = `${found.info.description} Version ${found.info.version}.`;
  const ways = Object.values(found.components.securitySchemes).map((one) =>
    one.type === "apiKey" ? `${one.name}: KEY` : one.description,
  );
  const open = Object.values(found.paths).some((own) => Object.values(own).some((one) => one.security?.some((way) => !Object.keys(way).length)));
  $("keys").textContent = open
    ? "This service has no keys: anyone who can reach it may send requests."
    : `Send a key with every request, as ${ways.join(" or ")}.`;
  for (const [path, own] of Object.entries(found.paths)) {
    for (const [method, one] of Object.entries(own)) $("operations").append(operation(path, method, one));
  }
  const shown = Object.entries(found.components.schemas).filter(([name]) => !/ValidationError$/.test(name));
  for (const [name, schema] of shown) {
    $("schemas").append(el("h3", { id: name }, name), el("p", {}, schema.description ?? ""), fields(schema));
  }
}

show().catch((error) => {
  $("problem").textContent = `The description cannot be shown: ${error.message}`;
  $("problem").hidden = false;
});
