// The comparison of runs: their curves in one chart, their numbers, and the differences of their specs.
import { Chart, swatch } from "./chart.js";
import { address, again, ask, badge, byId, el, fullName, judged, measureOf, nameOfField, noteOf, number, perplexity, query, replace, say, stateOf, whole } from "./page.js";

const ids = [...new Set(query.getAll("run"))];
const cursors = new Map(ids.map((id) => [id, ""]));
let chart = null;
let running = true;
let known = "";

const runLink = (row) => el("a", { href: address("/run", [["run", row.id]]) }, fullName(row));
const without = (id) => address("/compare", ids.filter((other) => other !== id).map((other) => ["run", other]));

const titleOf = (key, rows) => (key.endsWith("perplexity") ? measureOf(rows, key.replace("perplexity", "")) : say(key));

function finals({ rows, results, now }) {
  const own = { status: (row) => badge(stateOf(row, now)), step: (row) => (row.steps === undefined ? say("none") : `${whole(row.step)}/${whole(row.steps)}`),
    loss: (row) => number(row.loss), perplexity: (row) => judged(row), test_perplexity: (row) => judged(row, "test_"), tokens_per_second: (row) => whole(row.tokens_per_second) };
  const others = [...new Set(results.flatMap((result) => Object.keys(result)))].filter((name) => !(name in own) && !["val_loss", "val_accuracy", "test_accuracy"].includes(name));
  const shownAs = (name, value) => (name.includes("perplexity") ? perplexity(value) : name.endsWith("_bytes") ? `${number(value / 2 ** 20, 1)} MiB` : number(value));
  const head = el("tr", {}, el("th", { scope: "col" }, say("run")), Object.keys(own).map((key) => el("th", { scope: "col", class: key === "status" ? null : "number" }, titleOf(key, rows))),
    others.map((name) => el("th", { scope: "col", class: "number" }, nameOfField(name))), el("th", {}));
  const body = rows.map((row, n) => el("tr", {},
    el("th", { scope: "row" }, swatch(chart.series[n]), runLink(row), noteOf(row), row.reason ? el("span", { class: "reason" }, row.reason) : null),
    Object.entries(own).map(([key, cell]) => el("td", { class: key === "status" ? null : "number", "data-label": titleOf(key, [row]) }, cell(row))),
    others.map((name) => el("td", { class: "number", "data-label": nameOfField(name) }, name in results[n] ? shownAs(name, results[n][name]) : say("none"))),
    el("td", {}, el("a", { class: "remove", href: without(row.id), "aria-label": say("remove", { run: fullName(row) }), title: say("remove", { run: fullName(row) }) }, "×"))));
  replace(byId("finals"), el("thead", {}, head), el("tbody", {}, body));
}

function fields({ rows, fields: differing }) {
  const names = Object.keys(differing);
  byId("fields").hidden = names.length === 0;
  byId("same").hidden = names.length > 0;
  const head = el("tr", {}, el("th", { scope: "col" }, say("field")), rows.map((row, n) => el("th", { scope: "col" }, swatch(chart.series[n]), fullName(row))));
  replace(byId("fields"), el("thead", {}, head), el("tbody", {}, names.map((name) =>
    el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), differing[name].map((value, n) => el("td", { "data-label": fullName(rows[n]) }, value === null ? say("none") : el("code", {}, value.length > 20 && /^"[0-9a-f]+"$/.test(value) ? `${value.slice(0, 13)}…` : value)))))));
}

async function curve(id) {
  let answer;
  do {
    answer = await ask("/api/curve", [["run", id], ["cursor", cursors.get(id)]]);
    cursors.set(id, answer.cursor);
    if (answer.whole || answer.val.step.length || answer.train.step.length) chart.take(id, answer);
  } while (answer.more);
}

if (ids.length === 0) byId("name").textContent = say("nothing_chosen");
else again(() => (running ? 2000 : 10_000), async () => {
  const answer = await ask("/api/compare", ids.map((id) => ["run", id]));
  running = answer.rows.some((row) => row.status === "running" || row.status === "not_begun");
  byId("content").hidden = false;
  byId("name").textContent = say("comparison", { n: answer.rows.length });
  const studies = new Set(answer.rows.map((row) => row.study));
  const named = (row) => (studies.size > 1 && row.study ? `${row.study}/${fullName(row)}` : fullName(row));
  const first = chart === null;
  chart ??= new Chart(byId("chart"), answer.rows.map((row) => ({ id: row.id, name: named(row), arm: row.arm ?? row.name })),
    (run, from, to) => ask("/api/curve", [["run", run], ["first", from], ["last", to]]));
  const { now, ...rest } = answer;
  const fresh = JSON.stringify([rest, answer.rows.map((row) => stateOf(row, now))]); // a run becomes silent by the passing of time
  if (fresh !== known) {
    known = fresh;
    finals(answer);
    fields(answer);
  }
  const live = answer.rows.filter((row) => first || row.status === "running" || row.status === "not_begun" || cursors.get(row.id) === "");
  for (const row of live) await curve(row.id);
});
