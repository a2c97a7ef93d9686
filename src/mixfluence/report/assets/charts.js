// Charts, bars and tables from plain numbers. Names are data: they go into text nodes and attributes only.
"use strict";
const DASHES = ["none", "7 3", "2 3", "9 3 2 3"];
const COLOURS = 7, MARKERS = 6, PATTERNS = 4, MOST_IN_TIP = 14;

// ---- elements, numbers, looks

function node(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
const short = value => (value ? plain(Number(value.toPrecision(3))) : "0");
function percent(value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 && value < 5e-4 ? (100 * value).toExponential(1) : (100 * value).toFixed(1)}%`;
}
const points = value => (value === null || value === undefined ? "–" : value.toFixed(1));

// A name looks the same in every chart: colour, dash and marker, of which any two tell it from its neighbours.
const looks = new Map();
function look(name) {
  if (!looks.has(name)) looks.set(name, looks.size);
  const number = looks.get(name);
  const dash = DASHES[Math.floor(number / COLOURS) % DASHES.length];
  return { colour: `c${number % COLOURS}`, dash, marker: number % MARKERS };
}

function marker(shape, x, y, size = 3.5) {
  const s = size;
  const paths = [
    `M${x - s} ${y}a${s} ${s} 0 1 0 ${2 * s} 0a${s} ${s} 0 1 0 ${-2 * s} 0`,
    `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    `M${x} ${y - s - 1}l${s + 1} ${2 * s}h${-2 * s - 2}z`,
    `M${x} ${y - s - 1.5}l${s + 1.5} ${s + 1.5}l${-s - 1.5} ${s + 1.5}l${-s - 1.5} ${-s - 1.5}z`,
    `M${x - s} ${y}h${2 * s}M${x} ${y - s}v${2 * s}`,
    `M${x - s} ${y - s}l${2 * s} ${2 * s}M${x + s} ${y - s}l${-2 * s} ${2 * s}`,
  ];
  const fill = shape < 4 ? "currentColor" : "none";
  return node("svg:path", { d: paths[shape], fill, stroke: "currentColor", "stroke-width": 1.5 });
}

function swatch(name) {
  const { colour, dash, marker: shape } = look(name);
  const line = node("svg:line", { class: "line", x1: 0, x2: 26, y1: 7, y2: 7, "stroke-dasharray": dash });
  return node("svg:svg", { class: colour, width: 26, height: 14, "aria-hidden": "true" }, line, marker(shape, 13, 7));
}

// ---- scales

function linearTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(m => m >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const m of high / low > 30 ? [1] : [1, 2, 5]) ticks.push(m * 10 ** power);
  const every = Math.ceil(ticks.length / 8);
  return ticks.filter((tick, i) => tick >= low * 0.999 && tick <= high * 1.001 && i % every === 0);
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : v => v;
  const span = f(high) - f(low) || 1;
  return v => Math.round(10 * (from + (f(log ? Math.max(v, low) : v) - f(low)) / span * (to - from))) / 10;
}

function extent(values, log) {
  const known = values.filter(v => Number.isFinite(v) && (!log || v > 0));
  if (!known.length) return log ? [0.1, 1] : [0, 1];
  let low = Math.min(...known), high = Math.max(...known);
  const room = (Math.abs(low) || 1) / 10;
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - room, high + room];
  return [low, high];
}

// ---- charts

// spec: title, label, xs, lines [{name, ys, low, high}], format; also step, scatter, zero, marks, xLabel, xMax, dots.
// spec.xs holds for all lines, but in a scatter each line is one point {name, x, y, low, high}.
function chart(parent, spec, state = { hidden: new Set(), log: false }) {
  const label = `${spec.label} Arrow keys read its values.`;
  const drawing = node("svg:svg", { class: "chart", tabindex: 0, role: "img", "aria-label": label });
  const tip = node("div", { class: "tip", role: "status", hidden: "" });
  const figure = node("figure", {}, node("figcaption", {}, spec.title), node("div", { class: "frame" }, drawing, tip));
  parent.append(figure);
  let at = null, geometry = null;
  const visible = () => spec.lines.filter(line => !state.hidden.has(line.name));
  const xs = spec.scatter ? spec.lines.map(line => line.x) : spec.xs;

  function draw() {
    const width = Math.max(drawing.parentElement.clientWidth, 240), height = width < 480 ? 240 : 290;
    const lines = visible(), log = state.log && !spec.scatter;
    const values = lines.flatMap(line => spec.scatter ? [line.y, line.low, line.high]
      : [...line.ys, ...(log ? [] : [...(line.low || []), ...(line.high || [])])]);
    let [low, high] = extent(values, log);
    if (spec.zero && !log) low = Math.min(low, 0);
    const pad = spec.scatter ? 0.12 : 0.04;
    const room = log ? 0 : pad * (high - low);
    [low, high] = [spec.zero && low === 0 ? 0 : low - room, high + room];
    let [left, right] = [0, spec.scatter ? 1.08 * Math.max(...xs) : spec.xMax || Math.max(...xs)];
    if (left === right) right = left + 1;
    const share = spec.format === percent;
    const tickText = tick => (share ? `${plain(Number((100 * tick).toPrecision(6)))}%` : plain(tick));
    const ticks = log ? logTicks(low, high) : linearTicks(low, high, 5);
    const widest = Math.max(3, ...ticks.map(tick => tickText(tick).length));
    const margin = { left: 14 + 6.6 * widest, right: 14, top: 8, bottom: 40 }, bottom = height - margin.bottom;
    const x = scale(left, right, margin.left, width - margin.right), y = scale(low, high, bottom, margin.top, log);
    geometry = { x, y, width, height, margin };
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("height", height);
    drawing.replaceChildren();
    for (const tick of ticks) drawing.append(
      node("svg:line", { class: "rule", x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick) }),
      node("svg:text", { x: margin.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick)));
    for (const tick of linearTicks(left, right, width < 480 ? 4 : 8))
      drawing.append(node("svg:text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, plain(tick)));
    const middle = (margin.left + width - margin.right) / 2;
    drawing.append(node("svg:text", { x: middle, y: height - 5, "text-anchor": "middle" }, spec.xLabel || "step"));
    for (const mark of spec.marks || [])
      drawing.append(node("svg:line", { class: "update", x1: x(mark), x2: x(mark), y1: margin.top, y2: bottom }));
    lines.forEach((line, i) => drawing.append(spec.scatter ? dot(line) : curve(line, i, lines.length)));
    if (spec.scatter) drawing.append(...names(lines));
    drawing.append(node("svg:g", { class: "cursor" }));
    show();
  }

  function curve(line, i, count) {
    const { x, y } = geometry, { colour, dash, marker: shape } = look(line.name);
    const group = node("svg:g", { class: colour, "data-name": line.name });
    const known = line.ys.map((v, j) => [spec.xs[j], v, j]).filter(([, v]) => v !== null);
    if (!known.length) return group;
    if (line.low && !state.log) {
      const band = known.filter(([, , j]) => line.low[j] !== null && line.high[j] !== null);
      const edge = ends => band.map(([s, , j]) => `${x(s)},${y(ends[j])}`);
      const corners = [...edge(line.high), ...edge(line.low).reverse()].join(" ");
      group.append(node("svg:polygon", { class: "band", points: corners }));
    }
    let path = `M${x(known[0][0])} ${y(known[0][1])}`;
    for (const [s, v] of known.slice(1)) path += spec.step ? `H${x(s)}V${y(v)}` : `L${x(s)} ${y(v)}`;
    group.append(node("svg:path", { class: "line", d: path, "stroke-dasharray": count > 1 ? dash : "none" }));
    // Markers of several lines stand apart, so that lines on top of each other still show.
    const every = spec.dots ? 1 : Math.max(1, Math.floor(known.length / 6));
    const shift = i * Math.max(1, Math.floor(every / count));
    known.filter((_, j) => (j + shift) % every === 0).forEach(([s, v]) => group.append(marker(shape, x(s), y(v))));
    return group;
  }

  function dot(line) {
    const { x, y } = geometry, { colour, marker: shape } = look(line.name);
    const group = node("svg:g", { class: colour, "data-name": line.name });
    const whisker = { class: "line", x1: x(line.x), x2: x(line.x), y1: y(line.low), y2: y(line.high) };
    if (line.low !== null) group.append(node("svg:line", whisker));
    group.append(marker(shape, x(line.x), y(line.y), 5));
    return group;
  }

  // Names stand beside their points where there is room; the legend has them all.
  function names(lines) {
    const placed = lines.map(line => [geometry.x(line.x) - 7, geometry.x(line.x) + 7, geometry.y(line.y) + 4]);
    return [...lines].sort((a, b) => b.y - a.y).map(line => {
      const { x, y, width } = geometry, before = x(line.x) > width * 0.6, px = x(line.x) + (before ? -10 : 10);
      const py = y(line.y) + 4, start = before ? px - 7 * line.name.length : px, end = start + 7 * line.name.length;
      const taken = placed.some(([s, e, oy]) => Math.abs(oy - py) < 13 && s < end && start < e);
      if (start < 0 || end > width || taken) return "";
      placed.push([start, end, py]);
      return node("svg:text", { x: px, y: py, "text-anchor": before ? "end" : "start" }, line.name);
    });
  }

  function show() {
    const cursor = drawing.lastChild, { x, y, width, height, margin } = geometry;
    cursor.replaceChildren();
    const point = spec.scatter && at !== null ? spec.lines[at] : null;
    tip.hidden = at === null || (point && state.hidden.has(point.name));
    if (tip.hidden) return;
    const px = x(xs[at]);
    if (point) cursor.append(node("svg:circle", { cx: px, cy: y(point.y), r: 10 }));
    else cursor.append(node("svg:line", { x1: px, x2: px, y1: margin.top, y2: height - margin.bottom }));
    tip.replaceChildren(...(point ? point.says : rowsAt(at)));
    tip.style.left = `${Math.min(Math.max(px + 12, 0), Math.max(width - tip.offsetWidth, 0))}px`;
    if (px + 12 + tip.offsetWidth > width) tip.style.left = `${Math.max(px - 12 - tip.offsetWidth, 0)}px`;
    tip.style.top = `${margin.top}px`;
  }

  function rowsAt(i) {
    const known = visible().map(line => [line, line.ys[i]]).filter(([, v]) => v !== null);
    known.sort((a, b) => b[1] - a[1]);
    const rows = known.slice(0, MOST_IN_TIP).map(([line, v]) => {
      const error = line.high && line.high[i] !== null ? ` ± ${spec.format(line.high[i] - v)}` : "";
      const name = node("span", { class: "name" }, line.name);
      return node("div", { class: "row" }, swatch(line.name), name, node("b", {}, spec.format(v) + error));
    });
    if (known.length > rows.length) rows.push(node("div", {}, `and ${known.length - rows.length} more`));
    return [node("div", {}, `${spec.xLabel || "step"} ${plain(xs[i])}`), ...rows];
  }

  drawing.addEventListener("pointermove", event => {
    const box = drawing.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const far = i => Math.hypot(geometry.x(xs[i]) - px, spec.scatter ? geometry.y(spec.lines[i].y) - py : 0);
    at = xs.reduce((best, _, i) => (far(i) < far(best) ? i : best), 0);
    show();
  });
  drawing.addEventListener("pointerleave", () => { at = null; show(); });
  drawing.addEventListener("blur", () => { at = null; show(); });
  drawing.addEventListener("keydown", event => {
    const last = xs.length - 1;
    const right = at === null ? 0 : Math.min(at + 1, last), left = at === null ? last : Math.max(at - 1, 0);
    const moves = { ArrowRight: right, ArrowLeft: left, Home: 0, End: last, Escape: null };
    if (!(event.key in moves)) return;
    at = moves[event.key];
    event.preventDefault();
    show();
  });
  new ResizeObserver(draw).observe(drawing.parentElement);
  figure.append(spec.scatter
    ? numbers(["", spec.xLabel, spec.yLabel], spec.lines.map(line => [line.name, plain(line.x), spec.format(line.y)]))
    : numbers([spec.xLabel || "step", ...spec.lines.map(line => line.name)],
      xs.map((s, i) => [plain(s), ...spec.lines.map(line => spec.format(line.ys[i]))])));
  return draw;
}

function numbers(head, rows) {
  const details = node("details", { class: "numbers" }, node("summary", {}, "Numbers"));
  details.addEventListener("toggle", () => details.childElementCount > 1 || details.append(table(head, rows)));
  return details;
}

function table(head, rows, shade) {
  function cell(text, r, c) {
    const made = node("td", { class: "number" }, text);
    if (shade) made.style.setProperty("--part", `${Math.round(60 * (shade(r, c) || 0))}%`);
    return made;
  }
  const lines = rows.map(([name, ...texts], r) =>
    node("tr", {}, node("th", { scope: "row" }, name), ...texts.map((text, c) => cell(text, r, c))));
  const top = node("thead", {}, node("tr", {}, ...head.map(name => node("th", { scope: "col" }, name))));
  const whole = node("table", { class: shade ? "grid" : "" }, top, node("tbody", {}, ...lines));
  return node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, whole);
}

const total = row => Object.values(row.parts).reduce((sum, v) => sum + v, 0);

// rows: [{name, parts: {part: value}}]; most: what fills the whole width.
function bars(parent, rows, format, unit, most = Math.max(...rows.map(total)) || 1) {
  const parts = [...new Set(rows.flatMap(row => Object.keys(row.parts)))];
  const piece = (title, i) => node("span", { class: `piece c${i % COLOURS} p${i % PATTERNS}`, title });
  const key = parts.map((part, i) => node("span", {}, piece(part, i), ` ${part}`));
  if (parts.length > 1) parent.append(node("div", { class: "key" }, ...key));
  const lines = rows.map(row => {
    const track = node("span", { class: "track", "aria-hidden": "true" }, ...parts.map((part, i) => {
      const made = piece(`${part || row.name}: ${format(row.parts[part] || 0)} ${unit}`, i);
      made.style.width = `${100 * (row.parts[part] || 0) / most}%`;
      return made;
    }));
    const value = node("span", { class: "number" }, format(total(row)));
    return node("div", { class: "bar" }, node("span", { class: "name" }, row.name), track, value);
  });
  parent.append(node("div", { class: "bars" }, ...lines));
  const cells = rows.map(row => [row.name, ...parts.map(part => format(row.parts[part]))]);
  if (parts.length > 1) parent.append(numbers(["", ...parts], cells));
}

function legend(names, state, redraw, label = "Shown datasets") {
  const box = node("div", { class: "legend", role: "group", "aria-label": label });
  const buttons = names.map(name => {
    const text = node("span", { class: "name" }, name);
    const button = node("button", { type: "button", "aria-pressed": !state.hidden.has(name) }, swatch(name), text);
    button.addEventListener("click", () => set([name], !state.hidden.has(name)));
    return button;
  });
  function set(which, hide) {
    for (const name of which) hide ? state.hidden.add(name) : state.hidden.delete(name);
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", !state.hidden.has(names[i])));
    redraw();
  }
  box.append(...buttons);
  for (const [word, hide] of names.length > 2 ? [["all", false], ["none", true]] : []) {
    const button = node("button", { type: "button", class: "plain" }, word);
    button.addEventListener("click", () => set(names, hide));
    box.append(button);
  }
  return box;
}
