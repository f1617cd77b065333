// The overview: studies with their progress, and every run in one table.
import { address, again, ask, badge, byId, el, elapsed, fullName, judged, judgedBy, listProblems, measureOf, nameOf, noteOf, number,
  query, replace, reportLink, say, stateOf, timeLeft, triedBy, whole } from "./page.js";

const MOST = 40;
const rows = new Map(); // id -> data of the run
const lines = new Map(); // id -> its <tr>
const chosen = new Set(JSON.parse(sessionStorage.getItem("chosen") ?? "[]")); // kept while a run is open
const seen = { epoch: "", revision: 0, now: 0, received: 0 };
const view = {
  filter: query.get("filter") ?? "",
  study: query.get("study"),
  sort: query.get("sort") ?? "age",
  down: query.get("down") !== "0",
  apart: query.get("apart") === "1", // whether superseded and hidden runs are shown
  off: new Set(JSON.parse(localStorage.getItem("columns-off") ?? '["train_loss", "learning_rate"]')), // columns that are not shown
};

const now = () => seen.now + (performance.now() - seen.received) / 1000;
const value = (x) => (x === null || x === undefined ? null : Number(x));

const COLUMNS = [
  { key: "arm", by: (row) => nameOf(row), cell: nameCell, first: "up" },
  { key: "study", by: (row) => row.study, cell: (row) => el("span", { title: row.study }, row.study || say("none")), first: "up" },
  { key: "tried", by: triedBy, cell: (row) => triedBy(row) || say("none"), first: "up" },
  { key: "seed", by: (row) => value(row.seed), cell: (row) => row.seed ?? say("none"), numeric: true, first: "up" },
  { key: "status", by: (row) => stateOf(row, now()), cell: (row) => badge(stateOf(row, now())), first: "up" },
  { key: "step", by: (row) => value(row.step), cell: stepCell, numeric: true },
  { key: "time_left_column", by: (row) => timeLeft(row, now()), cell: leftCell, numeric: true, first: "up" },
  { key: "train_loss", by: (row) => value(row.train_loss), cell: (row) => number(row.train_loss), numeric: true, first: "up" },
  { key: "learning_rate", by: (row) => value(row.fields?.["train.learning_rate"]), cell: (row) => row.fields?.["train.learning_rate"] ?? say("none"), numeric: true, first: "up" },
  { key: "loss", by: (row) => value(row.loss), cell: (row) => number(row.loss), numeric: true, first: "up" },
  { key: "perplexity", by: (row) => value(judgedBy(row)), cell: (row) => judged(row), numeric: true, first: "up" },
  { key: "test_perplexity", by: (row) => value(judgedBy(row, "test_")), cell: testCell, numeric: true, first: "up" },
  { key: "tokens_per_second", by: (row) => value(row.tokens_per_second), cell: (row) => whole(row.tokens_per_second), numeric: true },
  { key: "age", by: (row) => row.written, cell: (row) => (row.written ? elapsed(now() - row.written) : say("none")), numeric: true },
];

function nameCell(row) {
  const link = el("a", { href: address("/run", [["run", row.id]]) }, nameOf(row));
  const why = superseded.has(row.id) ? el("span", { class: "reason" }, say("superseded_note")) : null;
  return [link, noteOf(row), why, row.reason ? el("span", { class: "reason", title: row.reason }, row.reason) : null];
}

function leftCell(row) {
  const left = timeLeft(row, now());
  return left === null ? say("none") : elapsed(left);
}

function stepCell(row) {
  if (row.steps === undefined) return say("none");
  const bar = row.status === "running" ? [el("progress", { value: row.step, max: row.steps, "aria-label": say("step") })] : [];
  return [el("span", {}, `${whole(row.step)}/${whole(row.steps)}`), ...bar];
}

function testCell(row) {
  const text = judged(row, "test_");
  return row.dirty && value(judgedBy(row, "test_")) !== null ? [text, el("abbr", { title: say("dirty") }, "‡")] : text;
}

// ---- filter and order

const text = (row) =>
  [row.id, row.arm, row.label, row.corpus, row.status, row.reason, row.note, ...(row.tags ?? []), say(stateOf(row, now()))].join("\n").toLowerCase();

// The values of a field by its name or by the end of it: learning_rate is train.learning_rate.
function valuesOf(row, name) {
  const own = { tag: row.tags ?? [], arm: [row.arm], study: [row.study], status: [row.status], stage: [row.tunes ? "tune" : "confirm"] };
  if (name in own) return own[name].map((found) => String(found).toLowerCase());
  return Object.entries(row.fields ?? {}).filter(([field]) => field === name || field.endsWith(`.${name}`)).map(([, found]) => found.toLowerCase());
}

// A word must occur somewhere. name:value must match completely (seed:1 is not seed:10, 3e-3 is 0.003). A minus negates.
function matchesTerm(row, term) {
  if (term.startsWith("-") && term.length > 1) return !matchesTerm(row, term.slice(1));
  const [name, ...rest] = term.split(":");
  const wanted = rest.join(":");
  const values = wanted === "" ? [] : valuesOf(row, name);
  if (values.length) return values.some((found) => found === wanted || (found !== "" && Number(found) === Number(wanted)));
  return wanted === "" || !FIELD.test(name) ? text(row).includes(term) : false;
}
const FIELD = /^[a-z_.]+$/;

function matches(row, terms) {
  if (view.study !== null && row.study !== view.study) return false;
  return terms.every((term) => matchesTerm(row, term));
}

// Runs that do not count: of several complete records of one declared run, on the data that were used last, the first
// one counts (docs/studies.md).
let superseded = new Set();
function findSuperseded() {
  const groups = Map.groupBy([...rows.values()].filter((row) => row.declared && row.status === "complete"), (row) => `${row.study}\n${row.declared}`);
  const found = [...groups.values()].flatMap((group) => {
    const byStart = group.toSorted((a, b) => a.started.localeCompare(b.started));
    const current = byStart.filter((row) => row.checksum === byStart.at(-1).checksum);
    return byStart.filter((row) => row !== current[0]).map((row) => row.id);
  });
  const before = superseded;
  superseded = new Set(found);
  for (const id of new Set([...before, ...superseded])) if (before.has(id) !== superseded.has(id) && rows.has(id)) refreshLine(rows.get(id));
}
const isApart = (row) => row.hidden || superseded.has(row.id);

function visible() {
  const terms = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const { by } = COLUMNS.find((column) => column.key === view.sort) ?? COLUMNS[0];
  const sign = view.down ? -1 : 1;
  const missing = (x) => x === null || x === undefined || Number.isNaN(x);
  return [...rows.values()].filter((row) => (view.apart || !isApart(row)) && matches(row, terms)).sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y) || a.id.localeCompare(b.id); // always at the end
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return sign * order || a.id.localeCompare(b.id, undefined, { numeric: true });
  });
}

function sortBy(key, down) {
  const column = COLUMNS.find((found) => found.key === key);
  view.down = down ?? (view.sort === key ? !view.down : column.first !== "up");
  view.sort = key;
  headings();
  show();
}

// ---- drawing

const shownColumns = () => COLUMNS.filter(({ key }) => !view.off.has(key));
// "perplexity" is "accuracy" where the runs are classifiers.
function headingOf(key, of = [...rows.values()]) {
  return key.endsWith("perplexity") ? measureOf(of, key.replace("perplexity", "")) : say(key);
}

function columnChoice() {
  replace(byId("columns"), COLUMNS.filter(({ key }) => key !== "arm").map(({ key }) => {
    const box = el("input", { type: "checkbox", "data-column": key, onchange: (event) => {
      if (event.target.checked) view.off.delete(key);
      else view.off.add(key);
      localStorage.setItem("columns-off", JSON.stringify([...view.off]));
      lines.clear();
      order = null;
      headings();
      show();
    } });
    box.checked = !view.off.has(key);
    return el("label", { class: "check" }, box, " ", headingOf(key));
  }));
}

// The shown runs and columns as a file, with every digit.
function csv() {
  const cell = (x) => (/[",\n]/.test(x) ? `"${x.replaceAll('"', '""')}"` : x);
  const table = visible().map((row) => [row.id, ...shownColumns().map(({ key, by }) =>
    key === "step" ? row.step : key.endsWith("perplexity") ? row[key.replace("perplexity", "accuracy")] ?? row[key] : key === "age" ? row.written : by(row)), (row.tags ?? []).join(" "), row.note ?? ""]);
  const head = ["id", ...shownColumns().map(({ key }) => headingOf(key)), "tags", "note"];
  return [head, ...table].map((line) => line.map((x) => cell(x === null || x === undefined ? "" : String(x))).join(",")).join("\n") + "\n";
}

function saveCsv() {
  const link = el("a", { href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })), download: "runs.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function headings() {
  const all = el("input", { type: "checkbox", id: "choose-all", "aria-label": say("choose_all"), onchange: chooseAll });
  const cells = shownColumns().map(({ key, numeric }) => {
    const active = view.sort === key;
    const sorted = active ? (view.down ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: `${key}${numeric ? " number" : ""}`, "aria-sort": sorted },
      el("button", { type: "button", "data-sort": key, onclick: () => { sortBy(key); byId("runs").querySelector(`[data-sort=${key}]`).focus(); } },
        headingOf(key), active ? el("span", { "aria-hidden": "true" }, view.down ? "\u00a0↓" : "\u00a0↑") : null));
  });
  replace(byId("runs").tHead, el("tr", {}, el("th", { class: "pick" }, all), cells));
  const options = COLUMNS.flatMap(({ key }) => [false, true].map((down) =>
    el("option", { value: `${key} ${down}`, selected: view.sort === key && view.down === down }, `${headingOf(key)} ${down ? "↓" : "↑"}`)));
  replace(byId("sort"), options);
}

function line(row) {
  const box = el("input", { type: "checkbox", "aria-label": say("choose", { run: fullName(row) }), onchange: (event) => choose(row.id, event.target.checked) });
  box.checked = chosen.has(row.id);
  return el("tr", { "data-id": row.id, "data-state": stateOf(row, now()), class: row.arm === undefined ? "unread" : isApart(row) ? "apart" : null },
    el("td", { class: "pick" }, box),
    shownColumns().map(({ key, cell, numeric }) =>
      el(key === "arm" ? "th" : "td", { scope: key === "arm" ? "row" : null, class: `${key}${numeric ? " number" : ""}`, "data-label": headingOf(key, [row]) }, [cell(row)].flat())));
}

let order = "";
let measure = ""; // the heading of the main measure, which depends on the runs
function show() {
  const found = visible();
  const next = found.map((row) => row.id).join("\n");
  for (const row of found) if (!lines.has(row.id)) lines.set(row.id, line(row));
  const body = byId("runs").tBodies[0];
  if (next !== order || body.childElementCount !== found.length) body.replaceChildren(...found.map((row) => lines.get(row.id)));
  order = next;
  byId("count").textContent = say("shown_of", { shown: whole(found.length), all: whole(rows.size) });
  const apart = [...rows.values()].filter(isApart).length;
  byId("apart-label").hidden = apart === 0;
  byId("apart-count").textContent = say("apart", { n: whole(apart) });
  byId("empty").hidden = found.length > 0;
  byId("runs").hidden = found.length === 0;
  const several = new Set([...rows.values()].map((row) => row.study)).size > 1;
  byId("runs").classList.toggle("one-study", !several || view.study !== null);
  byId("runs").classList.toggle("nothing-tried", !found.some((row) => triedBy(row)));
  byId("runs").classList.toggle("nothing-running", !found.some((row) => timeLeft(row, now()) !== null));
  tray();
  remember();
}

function refreshLine(row) {
  const old = lines.get(row.id);
  if (!old) return;
  const held = old.contains(document.activeElement) ? document.activeElement.closest("td,th").cellIndex : null;
  const fresh = line(row);
  lines.set(row.id, fresh);
  if (old.isConnected) old.replaceWith(fresh);
  if (held !== null) fresh.cells[held].querySelector("a,input")?.focus();
}

function remember() {
  const search = new URLSearchParams(query);
  for (const [key, kept] of Object.entries({ filter: view.filter, study: view.study, sort: view.sort === "age" ? "" : view.sort, down: view.down ? "" : "0", apart: view.apart ? "1" : "" }))
    if (kept || (key === "study" && kept === "")) search.set(key, kept);
    else search.delete(key);
  history.replaceState(null, "", search.size ? `?${search}` : location.pathname);
}

function studies(found) {
  byId("studies-section").hidden = found.length === 0 || (found.length === 1 && !found[0].question && !found[0].reports.length);
  const held = document.activeElement?.dataset?.study;
  replace(byId("studies"), found.map((study) => {
    const { done } = study;
    const percent = Math.floor((100 * done) / Math.max(1, study.expected));
    const others = Object.entries(study.states).filter(([state]) => state !== "complete").map(([state, n]) => el("span", { class: `state ${state}` }, `${n} ${say(state)}`));
    const active = view.study === study.id;
    return el("li", { class: active ? "active" : null },
      el("button", { type: "button", class: "name", "data-study": study.id, "aria-pressed": String(active), onclick: () => pickStudy(active ? null : study.id, found) }, study.name),
      el("p", { class: "question" }, study.question ?? study.reason ?? (study.id === "" ? say("loose") : "")),
      el("div", { class: "meter" }, el("progress", { value: done, max: Math.max(1, study.expected), "aria-label": study.name }),
        el("span", {}, study.stage ? `${say(study.stage)} ` : "", say("progress", { done, all: study.expected, percent }))),
      el("p", { class: "foot" }, others, reportLink(study.id, study.reports)));
  }));
  if (held !== undefined) byId("studies").querySelector(`[data-study="${CSS.escape(held)}"]`)?.focus();
}

function pickStudy(id, found) {
  view.study = id;
  studies(found);
  show();
}

// ---- choosing

function choose(id, wanted) {
  if (wanted) chosen.add(id);
  else chosen.delete(id);
  tray();
}

function chooseAll(event) {
  for (const row of visible()) {
    choose(row.id, event.target.checked);
    lines.get(row.id).querySelector("input").checked = event.target.checked;
  }
}

function tray() {
  sessionStorage.setItem("chosen", JSON.stringify([...chosen]));
  byId("tray").hidden = chosen.size === 0;
  const fits = chosen.size <= MOST;
  byId("chosen").textContent = say(fits ? "chosen" : "too_many", { n: chosen.size, most: MOST });
  const link = byId("compare");
  link.classList.toggle("off", !fits);
  if (fits) link.href = address("/compare", [...chosen].map((id) => ["run", id]));
  else link.removeAttribute("href");
}

// ---- answers of the server

async function update() {
  const answer = await ask("/api/overview", [["epoch", seen.epoch], ["since", seen.revision]]);
  Object.assign(seen, { epoch: answer.epoch, revision: answer.revision, now: answer.now, received: performance.now() });
  if (answer.whole) for (const id of chosen) if (!answer.runs.some((row) => row.id === id)) chosen.delete(id);
  if (answer.whole) for (const id of rows.keys()) if (!answer.runs.some((row) => row.id === id)) answer.gone.push(id);
  for (const id of answer.gone) {
    rows.delete(id);
    lines.delete(id);
    chosen.delete(id);
  }
  for (const row of answer.runs) {
    rows.set(row.id, row);
    refreshLine(row);
  }
  for (const row of rows.values()) { // times change in all rows
    if (lines.get(row.id)?.dataset.state !== stateOf(row, now())) refreshLine(row); // for example, a run has become silent
    const cell = lines.get(row.id)?.querySelector(".age");
    if (cell && row.written) cell.textContent = elapsed(now() - row.written);
  }
  findSuperseded();
  if (measureOf([...rows.values()]) !== measure) {
    measure = measureOf([...rows.values()]);
    lines.clear();
    order = null;
    headings();
    columnChoice();
  }
  byId("loading").hidden = true;
  byId("runs-section").hidden = rows.size === 0;
  byId("no-runs").hidden = rows.size > 0;
  studies(answer.studies);
  listProblems(answer.problems);
  show();
}

byId("filter").value = view.filter;
byId("filter").addEventListener("input", (event) => { view.filter = event.target.value; show(); });
byId("sort").addEventListener("change", (event) => { const [key, down] = event.target.value.split(" "); sortBy(key, down === "true"); });
byId("apart").checked = view.apart;
byId("apart").addEventListener("change", (event) => { view.apart = event.target.checked; show(); });
byId("csv").addEventListener("click", saveCsv);
byId("clear").addEventListener("click", () => {
  chosen.clear();
  for (const box of byId("runs").querySelectorAll("input")) box.checked = false;
  tray();
});
headings();
again(() => ([...rows.values()].some((row) => stateOf(row, now()) === "running") ? 2000 : 5000), update);
