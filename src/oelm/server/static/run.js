// One run: its state, curve, log, samples, heads, provenance and spec, updated while it trains.
import { Chart } from "./chart.js";
import { address, again, ask, badge, byId, el, duration, elapsed, fileAddress, fullName, lastSign, listProblems, nameOfField, noteOf, number, perplexity, query,
  replace, reportLink, say, stateOf, svg, timeLeft, whole } from "./page.js";

const id = query.get("run") ?? "";
const LOGS = ["training.log", "stderr.log"];
const LOG_SHOWN = 200_000; // characters of a log that stay on the page
const log = { name: null, end: null };
let chart = null;
let cursor = "";
let running = true;
let known = "";

function term(name, ...content) {
  return [el("dt", {}, name), el("dd", {}, content)];
}

const when = (text) => (text ? el("time", { datetime: text }, text.replace("T", " ").replace("+00:00", " UTC")) : say("none"));

function heading(answer) {
  const { row } = answer;
  const state = stateOf(row, answer.now);
  document.title = `${fullName(row)} · oelm`;
  byId("name").textContent = fullName(row);
  replace(byId("study"), row.study ? el("span", {}, "/ ", el("a", { href: address("/", [["study", row.study]]) }, row.study)) : null);
  replace(byId("status"), badge(state));
  const parts = [];
  if (row.steps !== undefined)
    parts.push(el("div", { class: "meter" }, el("progress", { value: row.step, max: row.steps, "aria-label": say("step") }),
      el("span", {}, `${say("step")} ${whole(row.step)}/${whole(row.steps)}`),
      timeLeft(row, answer.now) === null ? null : el("span", {}, say("time_left", { time: elapsed(timeLeft(row, answer.now)) })),
      row.written ? el("span", { class: "soft" }, `${say("age")} ${say("ago", { time: elapsed(answer.now - row.written) })}`) : null));
  if (noteOf(row)) parts.push(el("p", {}, noteOf(row)));
  if (row.tunes) parts.push(el("p", { class: "soft" }, say("tunes_note")));
  if (state === "silent") parts.push(el("p", { class: "notice" }, say("silent_note", { time: elapsed(answer.now - lastSign(row)) })));
  replace(byId("state"), parts);
  const links = [];
  if (answer.same_seed.length > 1)
    links.push(el("a", { href: address("/compare", [id, ...answer.same_seed.filter((key) => key !== id)].map((key) => ["run", key])) }, say("with_same_seed", { n: answer.same_seed.length })));
  replace(byId("links"), links, reportLink(row.study, answer.reports));
  running = row.status === "running" || row.status === "not_begun";
}

function why({ row, record }) {
  const text = record?.error ?? (record ? null : row.reason);
  byId("why").hidden = !text;
  if (!text) return;
  byId("why-heading").textContent = say(record ? (row.status === "failed" ? "why_failed" : "why_interrupted") : "why_unreadable");
  byId("why-text").textContent = text.trim();
}

function numbers({ row, result }) {
  // The perplexity of labels is meaningless, so it is null in the row of a classifier.
  const found = { perplexity: row.perplexity, test_perplexity: row.test_perplexity, loss: row.loss, ...result, tokens_per_second: row.tokens_per_second };
  const shown = Object.entries(found).filter(([name, value]) => value !== null && value !== undefined && name !== "val_loss");
  byId("numbers-section").hidden = shown.length === 0;
  replace(byId("numbers"), shown.map(([name, value]) => el("div", {},
    el("dt", {}, nameOfField(name)),
    el("dd", {}, name.includes("perplexity") ? perplexity(value) : name.endsWith("_bytes") ? `${number(value / 2 ** 20, 1)} MiB` : name === "tokens_per_second" ? whole(value) : number(value)))));
}

function facts({ record, folder, files, row }) {
  const found = [];
  if (record) {
    const { environment: e, parameters: p, data: d, seconds: s, cost: c } = record;
    const spent = s && { total: duration(s.total), train: duration(s.train), validation: duration(s.validation), checkpoint: duration(s.checkpoint) };
    const flops = c && [...Object.values(c.forward_flops), ...Object.values(c.backward_flops)].reduce((a, b) => a + b, 0) + c.removed_flops;
    found.push(
      term(say("command"), el("code", {}, e.command)),
      term(say("commit"), e.commit ? el("code", {}, e.commit) : say("no_commit"), e.dirty ? ` ‡ ${say("dirty")}` : ""),
      term(say("machine"), `${e.device}, ${e.platform}`),
      term(say("versions"), `oelm ${e.oelm}, Python ${e.python}, torch ${e.torch}`),
      term(say("started"), when(record.started)), term(say("finished"), when(record.finished)));
    if (spent) found.push(term(say("time_spent"), say("time_parts", spent)));
    if (p) found.push(term(say("parameters"), say("parameters_parts", { total: number(p.total), trainable: number(p.trainable), frozen: number(p.frozen) })));
    if (c?.removed_flops) found.push(term(say("removed_flops"), say("removed_of", { percent: number((100 * c.removed_flops) / flops, 2) })));
    if (record.frozen_hashes) found.push(term(say("frozen_hashes"), say("frozen_verified", { n: record.frozen_hashes })));
    if (d) found.push(term(say("data"), say("data_parts", { corpus: d.corpus, tokens: number(d.tokens.train), vocab: number(d.vocab_size) })));
    found.push(term(say("fingerprint"), el("code", {}, record.fingerprint)));
  }
  found.push(term(say("folder"), el("code", {}, folder)),
    term(say("files"), files.flatMap((name, n) => [n ? " · " : "", el("a", { href: fileAddress(row.id, name) }, name)])));
  replace(byId("facts"), found.flat());
}

function heat(name, grid) {
  const values = grid.flat().map(Number).filter(Number.isFinite);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const heads = Math.max(...grid.map((row) => row.length));
  const cell = Math.max(16, Math.min(34, Math.floor(300 / heads)));
  const cells = grid.flatMap((row, layer) => row.map((value, head) => svg("rect", {
    x: head * cell + 1, y: layer * cell + 1, width: cell - 2, height: cell - 2, rx: 2, class: "cell",
    "fill-opacity": Number.isFinite(Number(value)) ? 0.08 + 0.92 * ((value - low) / (high - low || 1)) : 0,
  }, svg("title", {}, `${say("layer", { n: layer })}, ${say("head", { n: head })}: ${number(value, 2)}`))));
  return el("figure", {}, el("figcaption", {}, say(name), el("span", { class: "soft" }, `${number(low, 2)} – ${number(high, 2)}`)),
    svg("svg", { viewBox: `0 0 ${heads * cell} ${grid.length * cell}`, width: heads * cell, height: grid.length * cell, role: "img", "aria-label": `${say(name)}: ${number(low, 2)} – ${number(high, 2)}` }, cells));
}

function pictures({ attention, samples }) {
  byId("attention-section").hidden = !attention;
  if (attention) replace(byId("attention"), Object.entries(attention).map(([name, grid]) => heat(name, grid)));
  byId("samples-section").hidden = !samples?.trim();
  if (samples) replace(byId("samples"), samples.trim().split("\n\n").map((text) => {
    const [prompt, ...rest] = text.split(" [...]");
    return el("blockquote", {}, rest.length ? [el("span", { class: "soft" }, prompt), rest.join(" [...]")] : text);
  }));
}

function spec({ spec: fields }) {
  const names = Object.keys(fields);
  byId("spec-section").hidden = names.length === 0;
  byId("spec-note").textContent = say("spec_note", { n: names.length });
  replace(byId("spec"), el("dl", { class: "facts" }, names.flatMap((name) => term(name, el("code", {}, fields[name])))));
}

// ---- the log

function chooseLog(name) {
  log.name = name;
  log.end = null;
  for (const button of byId("logs").children) button.setAttribute("aria-pressed", String(button.dataset.log === name));
}

function offerLogs(files, failed) {
  const there = LOGS.filter((name) => files.includes(name));
  byId("log-section").hidden = there.length === 0;
  if (there.join() === [...byId("logs").children].map((button) => button.dataset.log).join()) return;
  replace(byId("logs"), there.map((name) => el("button", { type: "button", "data-log": name, onclick: () => { chooseLog(name); readLog(); } }, name)));
  chooseLog(there.includes(log.name) ? log.name : failed && there.includes(LOGS[1]) && !there.includes(LOGS[0]) ? LOGS[1] : there[0]);
}

async function readLog() {
  if (!log.name) return;
  const asked = log.name;
  const box = byId("log");
  let more = true;
  while (more) {
    const answer = await ask("/api/log", [["run", id], ["name", asked], ...(log.end === null ? [] : [["offset", log.end]])]);
    if (asked !== log.name) return;
    const first = log.end === null;
    if (answer.restart) {
      box.textContent = "";
      byId("log-note").textContent = answer.start > 0 ? say("log_cut", { file: asked }) : "";
    }
    if (answer.text) box.append(answer.text);
    if (box.textContent.length > LOG_SHOWN) {
      box.textContent = box.textContent.slice(-LOG_SHOWN / 2).replace(/^[^\n]*\n/, "");
      byId("log-note").textContent = say("log_cut", { file: asked });
    }
    log.end = answer.end;
    box.classList.toggle("empty", answer.size === 0);
    if (answer.size === 0) box.textContent = say("log_empty");
    if (byId("follow").checked && (first || answer.text)) box.scrollTop = box.scrollHeight;
    more = answer.end < answer.size && answer.text.length > 0;
  }
}

// Scrolling up stops following the log, and scrolling to the end starts it again.
byId("log").addEventListener("scroll", (event) => {
  const { scrollTop, scrollHeight, clientHeight } = event.target;
  byId("follow").checked = scrollHeight - scrollTop - clientHeight < 24;
});
byId("follow").addEventListener("change", (event) => { if (event.target.checked) byId("log").scrollTop = byId("log").scrollHeight; });

// ---- answers of the server

async function readCurve(row) {
  chart ??= new Chart(byId("chart"), [{ id, name: fullName(row), arm: row.arm ?? row.name }], (run, first, last) => ask("/api/curve", [["run", run], ["first", first], ["last", last]]));
  let answer;
  do {
    answer = await ask("/api/curve", [["run", id], ["cursor", cursor]]);
    cursor = answer.cursor;
    if (answer.whole || answer.val.step.length || answer.train.step.length) chart.take(id, answer);
  } while (answer.more);
  return answer.problems;
}

again(() => (running ? 2000 : 10_000), async () => {
  let answer;
  try {
    answer = await ask("/api/run", [["run", id]]);
  } catch (error) {
    if (error.status === 404 && !known) byId("name").textContent = say("no_such_run");
    throw error;
  }
  byId("content").hidden = false;
  heading(answer);
  const { now, ...rest } = answer;
  const fresh = JSON.stringify(rest);
  if (fresh !== known) { // keep the reader's selection if nothing has changed
    known = fresh;
    for (const part of [why, numbers, facts, pictures, spec]) part(answer);
    offerLogs(answer.files, answer.row.status === "failed");
  }
  listProblems([...answer.problems, ...(await readCurve(answer.row))]);
  await readLog();
});
