// The page of a run. What the server sends is data: it is put into text nodes and numbers, never into markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 184, height: 74, right: 96, below: 22 };
const byId = (id) => document.getElementById(id);

function node(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function cell(row, text, kind) {
  const made = document.createElement(row.dataset.head ? "th" : "td");
  made.textContent = text;
  if (kind) made.className = kind;
  row.appendChild(made);
}

function line(table, cells, kinds, className) {
  const row = document.createElement("tr");
  if (className === "head") row.dataset.head = "1";
  else if (className) row.className = className;
  cells.forEach((text, at) => cell(row, text, kinds && kinds[at]));
  table.appendChild(row);
}

function refill(id, head, rows, kinds, nothing) {
  const table = byId(id);
  table.replaceChildren();
  if (!rows.length) return line(table, [nothing], ["note"]);
  line(table, head, kinds.map((kind) => (kind === "number" ? kind : "")), "head");
  rows.forEach(([cells, className]) => line(table, cells, kinds, className));
}

const number = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en"));
const short = (value) => (value < 10000 ? number(value) : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }));
const time = (ms) => {
  if (ms === null || ms === undefined) return "";
  const at = new Date(ms);
  return isNaN(at) ? String(ms) : at.toISOString().replace("T", " ").replace("Z", "");
};
const span = (ms) => {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${ms.toFixed(ms < 10 ? 2 : 0)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7200000) return `${(ms / 60000).toFixed(1)} min`;
  return ms < 172800000 ? `${(ms / 3600000).toFixed(1)} h` : `${number(Math.round(ms / 86400000))} d`;
};
const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
const sum = (counts) => Object.values(counts).reduce((all, each) => all + each, 0);

// -- the topology ---------------------------------------------------------------------------------------------------------------

function columnsOf(boxes, edges) {
  // The column of a box is the longest way to it from a source; a cycle ends after as many rounds as there are boxes.
  const column = new Map(boxes.map((box) => [box.name, 0]));
  for (let round = 0; round < boxes.length; round++)
    for (const edge of edges)
      if (column.has(edge.source) && column.has(edge.target))
        column.set(edge.target, Math.min(boxes.length, Math.max(column.get(edge.target), column.get(edge.source) + 1)));
  return column;
}

function drawTopology(run) {
  const column = columnsOf(run.boxes, run.edges);
  const filled = new Map();
  const place = new Map();
  for (const box of run.boxes) {
    const at = column.get(box.name);
    const row = filled.get(at) || 0;
    filled.set(at, row + 1);
    place.set(box.name, { x: 8 + at * (BOX.width + BOX.right), y: 8 + row * (BOX.height + BOX.below) });
  }
  const wide = 16 + (Math.max(0, ...column.values()) + 1) * (BOX.width + BOX.right) - BOX.right;
  const high = 16 + Math.max(1, ...filled.values()) * (BOX.height + BOX.below);
  const picture = node("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img" });
  const head = node("marker", { id: "head", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" });
  head.appendChild(node("path", { d: "M0 0 8 4 0 8z", class: "head" }));
  picture.appendChild(head);
  const ways = new Map();
  const labels = [];  // above all edges, so that no edge goes through a text
  for (const edge of run.edges) {
    const from = place.get(edge.source), to = place.get(edge.target);
    if (!from || !to) continue;
    const way = `${edge.source}\n${edge.target}`;
    const shift = 30 * (ways.get(way) || 0);
    ways.set(way, (ways.get(way) || 0) + 1);
    const x1 = from.x + BOX.width, y1 = from.y + BOX.height / 2 + shift, x2 = to.x, y2 = to.y + BOX.height / 2 + shift;
    const half = (x1 + x2) / 2;
    const kind = edge.dotted ? "edge dotted" : "edge";
    picture.appendChild(node("path", { d: `M${x1} ${y1}C${half} ${y1} ${half} ${y2} ${x2} ${y2}`, class: kind, "marker-end": "url(#head)" }));
    const label = node("text", { x: half, y: (y1 + y2) / 2 - 6, "text-anchor": "middle", class: "count" }, number(edge.count));
    label.appendChild(node("title", {}, edge.label));
    labels.push(label, node("text", { x: half, y: (y1 + y2) / 2 + 12, "text-anchor": "middle", class: "soft way" }, cut(edge.label, 20)));
  }
  picture.append(...labels);
  for (const box of run.boxes) {
    const at = place.get(box.name), found = run.components[box.name];
    picture.appendChild(node("rect", { x: at.x, y: at.y, width: BOX.width, height: BOX.height, rx: box.shape === "spout" ? 16 : 5, class: box.shape }));
    box.lines.slice(0, 2).forEach((text, row) => {
      const label = node("text", { x: at.x + 10, y: at.y + 20 + 15 * row, class: row ? "soft" : "" }, cut(text, 28));
      label.appendChild(node("title", {}, text));
      picture.appendChild(label);
    });
    if (!found) continue;
    const said = [`ack ${short(found.acked)}`, `fail ${short(found.failed)}`];
    if (box.shape !== "spout") said.unshift(`exec ${short(found.executed)}`);
    const held = found.pending === null ? "" : `pending ${short(found.pending)}`;
    picture.appendChild(node("text", { x: at.x + 10, y: at.y + 51, class: found.failed ? "soft bad" : "soft" }, cut(said.join(", "), 34)));
    picture.appendChild(node("text", { x: at.x + 10, y: at.y + 66, class: "soft" }, held));
  }
  byId("topology").replaceChildren(picture);
}

// -- over time ------------------------------------------------------------------------------------------------------------------

const past = [], KEPT = 900;  // [time, {component: [lag, pending]}], a sample a second

function remember(run) {
  past.push([run.at, Object.fromEntries(Object.entries(run.components).map(([name, found]) => [name, [found.watermark_lag_ms, found.pending]]))]);
  past.splice(0, past.length - KEPT);
}

const smallest = (numbers) => numbers.reduce((least, each) => Math.min(least, each));  // Math.min(...) has a limit
const largest = (numbers) => numbers.reduce((most, each) => Math.max(most, each));

function drawLines(id, run, column, written) {
  const lines = Object.keys(run.components)
    .map((name) => [name, past.filter(([, of]) => of[name] && of[name][column] !== null).map(([at, of]) => [at, of[name][column]])])
    .filter(([, points]) => points.length);
  if (!lines.length) {
    byId(id).textContent = "no component says so";
    return;
  }
  const wide = 460, high = 170, left = 64, bottom = 24;
  const all = lines.flatMap(([, points]) => points);
  const times = all.map(([at]) => at), values = all.map(([, value]) => value);
  const from = smallest(times), to = Math.max(from + 1, largest(times));
  const top = Math.max(1, largest(values)), low = Math.min(0, smallest(values));
  const x = (at) => left + ((wide - left - 8) * (at - from)) / (to - from);
  const y = (value) => 8 + (high - bottom - 8) * (1 - (value - low) / (top - low));
  const picture = node("svg", { width: "100%", height: high + 18 * lines.length, viewBox: `0 0 ${wide} ${high + 18 * lines.length}`, role: "img" });
  for (const value of [low, (low + top) / 2, top]) {
    picture.appendChild(node("line", { x1: left, x2: wide - 8, y1: y(value), y2: y(value), class: "axis" }));
    picture.appendChild(node("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "soft" }, written(value)));
  }
  picture.appendChild(node("text", { x: left, y: high - 6, class: "soft" }, `${span(to - from)} ago`));
  picture.appendChild(node("text", { x: wide - 8, y: high - 6, "text-anchor": "end", class: "soft" }, "now"));
  lines.forEach(([name, points], at) => {
    picture.appendChild(node("polyline", { points: points.map(([when, value]) => `${x(when)},${y(value)}`).join(" "), class: `line c${at % 5}` }));
    picture.appendChild(node("rect", { x: left, y: high + 18 * at + 2, width: 10, height: 10, class: `f${at % 5}` }));
    picture.appendChild(node("text", { x: left + 16, y: high + 18 * at + 11, class: "soft" }, `${cut(name, 40)}: ${written(points[points.length - 1][1])}`));
  });
  byId(id).replaceChildren(picture);
}

// -- tables ---------------------------------------------------------------------------------------------------------------------

function counted(found) {
  return [number(sum(found.emitted)), number(found.executed), number(found.acked), number(found.failed), number(sum(found.late)),
    number(found.windows_fired), number(found.pending), number(found.queued), span(found.execute_latency_ms), span(found.process_latency_ms),
    time(found.watermark_ms), span(found.watermark_lag_ms), found.slowest || ""];
}

function fillTables(run) {
  const head = ["component, task", "emitted", "executed", "acked", "failed", "late", "windows", "pending", "queued", "execute", "process", "watermark", "lag", "waits for"];
  const kinds = ["", ...Array(12).fill("number"), ""];
  const rows = [];
  for (const [name, found] of Object.entries(run.components)) {
    rows.push([[name, ...counted(found)], found.failed ? "bad" : ""]);
    const tasks = run.tasks.filter((task) => task.component === name);
    if (tasks.length > 1) tasks.forEach((task) => rows.push([[`task ${task.task}`, ...counted(task)], "task"]));
  }
  refill("tasks", head, rows, kinds, "nothing was counted yet");
  const every = Object.entries(run.components);
  const windows = every.flatMap(([name, found]) => found.windows.map((each) => [[name, time(each[0]), each[1]]])).reverse();
  refill("windows", ["bolt", "end", "emitted"], windows, ["", "", "data"], "no window has fired");
  const late = every.flatMap(([name, found]) => found.late_rows.map((each) => [[name, each[0], each[1]]])).reverse();
  refill("late", ["bolt", "reason", "tuple"], late, ["", "", "data"], "none was late");
  const wrong = every.flatMap(([name, found]) => [
    ...(found.dead_letters ? [[[name, `${number(found.dead_letters)} dead letters`]]] : []),
    ...found.errors.map((text) => [[name, text]]),
  ]);
  refill("errors", ["component", "what"], wrong, ["", "data"], "none");
  const phases = Object.entries(run.phases).map(([phase, ms]) => [[phase, span(ms)]]);
  refill("phases", ["phase", "took"], phases, ["", "number"], "the run has no micro-batches");
}

function show(run) {
  const status = byId("status");
  status.className = run.problem ? "over" : "";
  if (run.problem) {
    status.textContent = run.problem;
    return;
  }
  document.title = `${run.name} - windowing`;
  byId("name").textContent = run.name;
  const ago = run.at - run.as_of;
  if (run.ended) status.className = "over";
  status.textContent = `${run.ended ? `ended ${run.ended}; ` : ""}${run.batch === null ? "" : `batch ${run.batch}${ago > 10000 ? `, which began ${span(ago)} ago` : ""}, `}${time(run.at)} UTC`;
  drawTopology(run);
  remember(run);
  drawLines("lag", run, 0, span);
  drawLines("pending", run, 1, (value) => number(Math.round(value)));
  fillTables(run);
}

async function follow() {
  const run = await fetch("now").then((answer) => answer.json()).catch(() => null);
  const status = byId("status");
  if (run) show(run);
  else Object.assign(status, { className: "over", textContent: "nobody answers: the run has ended, or is being started again" });
  if (run && run.over) status.textContent = "the run has ended";
  // With #once the page shows one moment and asks no more: for pictures.
  if (!run || (!run.over && location.hash !== "#once")) setTimeout(follow, 1000);
}

follow();
