// Shared by all pages: texts, elements, numbers, and repeated requests to the server.
// Text from records becomes text nodes and attributes only; it is never parsed as markup.

const WORDS = JSON.parse(document.getElementById("words").textContent);
const SVG = "http://www.w3.org/2000/svg";
export const byId = (id) => document.getElementById(id);
export const query = new URLSearchParams(location.search);
const locale = document.documentElement.lang;

export function say(key, gaps = {}) {
  if (!(key in WORDS)) throw new Error(`no sentence ${key}`);
  return WORDS[key].replace(/\{(\w+)\}/g, (_, name) => gaps[name]);
}

// The name of a number or of a field of a spec, in the language of the page where it has one.
export const nameOfField = (name) => (name in WORDS ? WORDS[name] : name.replace(/_bytes$/, "").replaceAll("_", " "));

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

// An address of this site, in the current language.
export function address(path, pairs = []) {
  const search = new URLSearchParams(pairs);
  if (query.has("lang")) search.set("lang", query.get("lang"));
  return search.size ? `${path}?${search}` : path;
}

export const fileAddress = (...parts) =>
  `/files/${parts.filter(Boolean).join("/").split("/").map(encodeURIComponent).join("/")}`;

// A link to the report of a study in the language of the page, or else in the other language; null if there is none.
export function reportLink(study, reports) {
  if (reports.length === 0) return null;
  const folder = reports.find((name) => name === `report-${locale.slice(0, 2)}`) ?? reports[0];
  return el("a", { href: fileAddress(study, folder, "report.html") }, say("report"));
}

// Numbers. NaN and infinities arrive as text ("NaN", "Infinity"), which Number() reads.
const cache = new Map();
function format(options) {
  const key = JSON.stringify(options);
  if (!cache.has(key)) cache.set(key, new Intl.NumberFormat("en", options));
  return cache.get(key);
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return say("none");
  const x = Number(value);
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e9)) return x.toExponential(2);
  return Number.isInteger(x)
    ? format({}).format(x)
    : format({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(x);
}

export const perplexity = (value) => number(value, Number(value) >= 1000 ? 0 : Number(value) >= 100 ? 1 : 3);

// The main measure of a run: perplexity of a language model, accuracy of a classifier; `of` is "" or "test_".
export const judged = (row, of = "") => {
  const accuracy = row[`${of}accuracy`];
  if (accuracy === null || accuracy === undefined) return perplexity(row[`${of}perplexity`]);
  return el("span", { title: say("accuracy") }, say("percent", { value: number(100 * accuracy, 1) }));
};
// The same as a number for sorting: lower is better.
export const judgedBy = (row, of = "") => {
  const accuracy = row[`${of}accuracy`];
  return accuracy === null || accuracy === undefined ? row[`${of}perplexity`] : 1 - accuracy;
};
export const whole = (value) => (value === null || value === undefined ? say("none") : number(Math.round(Number(value))));

export function duration(seconds) {
  const s = Math.max(0, Number(seconds));
  if (s < 90) return say("seconds", { n: s < 10 ? format({ maximumFractionDigits: 1 }).format(s) : Math.round(s) });
  if (s < 5400) return say("minutes", { n: Math.round(s / 60) });
  if (s < 172800) return say("hours", { n: format({ maximumFractionDigits: 1 }).format(s / 3600) });
  return say("days", { n: Math.round(s / 86400) });
}

export const elapsed = (seconds) => duration(Math.round(Math.max(0, seconds)));

// The state of a run has a word, a sign and a colour, so that none is needed alone.
// The process of a run touches its lock file every few seconds; without a lock file only its curve shows that it is alive.
const SILENT_SECONDS = { claim: 120, curve: 600 };
export const lastSign = (row) => Math.max(row.beat ?? 0, row.written ?? 0);
export function stateOf(row, now) {
  const limit = row.beat === null ? SILENT_SECONDS.curve : SILENT_SECONDS.claim;
  return row.status === "running" && now - lastSign(row) > limit ? "silent" : row.status;
}
export const badge = (state) => el("span", { class: `state ${state}` }, say(state));

export const nameOf = (row) => row.label ?? row.arm ?? row.name;
// What a run of a study tries, for example "learning rate 0.003": it tells the runs of a tuning stage apart.
export const triedBy = (row) => Object.entries(row.tried ?? {}).map(([field, value]) => `${nameOfField(field.split(".").at(-1))} ${value}`).join(", ");
export const fullName = (row) => (row.arm === undefined ? row.name : [say("run_name", { name: nameOf(row), seed: row.seed }), triedBy(row)].filter(Boolean).join(", "));

// The heading of the main measure: accuracy where all runs are judged by it, perplexity where none is.
export function measureOf(rows, of = "") {
  const judgedRows = rows.filter((row) => row.arm !== undefined);
  const labelled = judgedRows.filter((row) => row.accuracy !== null && row.accuracy !== undefined).length;
  return say(`${of}${labelled === 0 ? "perplexity" : labelled === judgedRows.length ? "accuracy" : "quality"}`);
}

// Training seconds that a running run still needs; null if that is not known.
export const timeLeft = (row, now) => (stateOf(row, now) !== "running" || row.seconds_left === null || row.seconds_left === undefined ? null : row.seconds_left);

// The tags and the note of a run (`oelm note`); null if there are none.
export function noteOf(row) {
  if (!row.note && !row.tags?.length) return null;
  return el("span", { class: "note" }, (row.tags ?? []).map((tag) => el("span", { class: "tag" }, `#${tag}`)), row.note ?? "");
}

export async function ask(path, pairs = []) {
  const response = await fetch(`${path}?${new URLSearchParams(pairs)}`, { cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
}

// Do something now and again `wait()` milliseconds after it is done; pause while the page is hidden.
export function again(wait, action) {
  const notice = byId("notice");
  let last = Date.now();
  const round = async () => {
    if (document.visibilityState !== "hidden") {
      try {
        await action();
        last = Date.now();
        notice.hidden = true;
      } catch (error) {
        // No answer, or not JSON: the server is gone or broken, and may come back.
        if (!(error instanceof TypeError || error instanceof SyntaxError) && !error.status) throw error;
        const lost = say("lost", { ago: elapsed((Date.now() - last) / 1000) });
        notice.textContent = error.status ? say("refused", { error: error.message }) : lost;
        notice.hidden = false;
      }
    }
    setTimeout(round, wait());
  };
  return round();
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter(Boolean));
}

export function listProblems(problems) {
  byId("problems-section").hidden = problems.length === 0;
  replace(byId("problems"), problems.map((text) => el("li", {}, text)));
}
