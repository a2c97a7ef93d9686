// The report, section by section, from the JSON block of the page; a section without data is left out.
const report = JSON.parse(document.getElementById("data").textContent);

function section(parent, id, title, note) {
  const made = node("section", { id }, node("h2", {}, title), node("p", { class: "dim" }, note));
  parent.append(made);
  return made;
}

const stage = training => (training.name ? `Stage ${training.name}: ` : "");
const called = run => (run.finished ? run.label : `${run.label} (unfinished: step ${run.reached} of ${run.steps})`);

// ---- all runs together

function together(parent) {
  const scored = report.groups.filter(group => group.average !== null && group.own_cost !== null);
  if (scored.length > 1) costAgainstQuality(parent, scored);
  const costed = report.groups.filter(group => Object.keys(group.cost).length);
  if (costed.length) time(parent, costed);
  const averaged = report.groups.filter(group => group.average !== null);
  if (averaged.length > 1) starts(parent, averaged);
  const weighed = report.runs.filter(run => Object.keys(run.weights).length);
  if (weighed.length) weights(parent, weighed);
  const alone = report.runs.filter(run => run.trained_on.length === 1 && Object.keys(run.scores).length);
  if (alone.length * report.tests.length > 1) trainTest(parent, alone);
}

function costAgainstQuality(parent, groups) {
  const part = section(parent, "cost", "Cost against quality",
    "Up and to the left is better. Whiskers: one standard deviation over seeds.");
  const lines = groups.map(group => {
    const { label: name, own_cost: x, average: y, spread } = group;
    const quality = `NDCG@10 ${points(y)}${spread === null ? "" : ` ± ${points(spread)}`}`;
    return {
      name, x, y, low: spread === null ? null : y - spread, high: spread === null ? null : y + spread,
      says: [node("b", {}, name), node("div", {}, quality), node("div", {}, `${plain(x)} ${report.unit}`)],
    };
  }).sort((a, b) => a.x - b.x);
  const state = { hidden: new Set(), log: false };
  part.append(legend(lines.map(line => line.name), state, () => draw(), "Shown runs"));
  const draw = chart(part, {
    scatter: true, lines, format: points, title: "Average NDCG@10 on the test sets", yLabel: "average NDCG@10",
    label: `Cost against quality of ${lines.length} samplers.`, xLabel: `${report.unit}, training and sampler`,
  }, state);
}

function time(parent, groups) {
  const part = section(parent, "time", `Where the ${report.unit.split(" ")[0]} went`, `In ${report.unit}, by part; the mean over seeds.`);
  const spent = group => Object.fromEntries(Object.entries(group.cost).filter(([, value]) => value > 0));
  bars(part, groups.map(group => ({ name: group.label, parts: spent(group) })), short, report.unit);
}

function starts(parent, groups) {
  const part = section(parent, "start", "Initial distribution against NDCG@10",
    "Average NDCG@10 in points, by where sampling started.");
  const start = group => report.runs[group.runs[0]].start, most = Math.max(...groups.map(group => group.average));
  for (const name of new Set(groups.map(start))) {
    part.append(node("h3", {}, name));
    const rows = groups.filter(group => start(group) === name);
    bars(part, rows.map(group => ({ name: group.label, parts: { "": group.average } })), points, "points", most);
  }
}

function weights(parent, runs) {
  const part = section(parent, "weights", "Learned weights",
    "The probability of each dataset at the end, one line per run and the dev sets that guided it.");
  const datasets = [...new Set(runs.flatMap(run => Object.keys(run.weights)))];
  const targets = ({ targets: names }) => (names.length ? ` → ${names.length > 3 ? `${names.length} dev sets` : names.join(", ")}` : "");
  const rows = runs.map(run => [called(run) + targets(run), ...datasets.map(name => percent(run.weights[name]))]);
  part.append(table(["run → dev sets", ...datasets], rows, (r, c) => runs[r].weights[datasets[c]]));
}

function trainTest(parent, runs) {
  const part = section(parent, "heat", "Train × test",
    "NDCG@10 of runs trained on one dataset alone; the darker, the nearer to the best of its column.");
  const score = (run, test) => run.scores[test] || 0;
  const best = report.tests.map(test => Math.max(...runs.map(run => score(run, test))) || 1);
  const rows = runs.map(run => [`${run.trained_on[0]} (${run.label})`, ...report.tests.map(test => points(run.scores[test]))]);
  part.append(table(["trained on", ...report.tests], rows, (r, c) => (score(runs[r], report.tests[c]) / best[c]) ** 4));
}

// ---- one run

function single(parent, run) {
  parent.replaceChildren();
  if (run.trainings.length) sampling(parent, run);
  if (run.trainings.some(training => training.influence.all)) influence(parent, run);
  if (run.trainings.some(training => training.loss.length)) progress(parent, run);
  const epochs = Object.entries(run.epochs);
  if (epochs.length) {
    const part = section(parent, "epochs", "Epochs consumed", "How often the rows of each dataset were trained on.");
    bars(part, epochs.map(([name, value]) => ({ name, parts: { "": value } })), short, "epochs");
  }
  if (Object.keys(run.queries).length) queries(parent, run);
  const part = section(parent, "recipe", "Recipe, versions and seed", run.finished ? `Ran on ${run.device}.`
    : `Unfinished: step ${run.reached} of ${run.steps}; versions are written at the end.`);
  part.append(table(["", ""], [["seed", String(run.seed)], ...Object.entries(run.versions)]),
    node("pre", { tabindex: 0, "aria-label": "Resolved recipe" }, run.recipe));
}

function sampling(parent, run) {
  const part = section(parent, "sampling", "Sampling trajectories",
    "How likely each dataset was to be drawn, and how much was drawn. Thin upright lines: updates.");
  const state = { hidden: new Set(), log: false }, draws = [], redraw = () => draws.forEach(draw => draw());
  const log = node("input", { type: "checkbox" });
  log.addEventListener("change", () => { state.log = log.checked; redraw(); });
  const names = [...new Set(run.trainings.flatMap(training => training.datasets))];
  part.append(legend(names, state, redraw), node("label", {}, log, " log scale"));
  for (const training of run.trainings) {
    const pair = node("div", { class: "pair" }), { datasets, steps, windows, updates: marks } = training;
    part.append(pair);
    const panel = (title, label, xs, columns, options) => draws.push(chart(pair, {
      title: stage(training) + title, label, xs, format: percent, zero: true, xMax: steps.at(-1), ...options,
      lines: datasets.map((name, i) => ({ name, ys: columns[i] })),
    }, state));
    const probability = `Probability of ${datasets.length} datasets over ${steps.at(-1)} steps.`;
    panel("Probability", probability, steps, training.probability, { step: true, marks });
    if (windows.length)
      panel("Drawn share of rows", "Share of rows drawn from each dataset, in windows of steps.", windows, training.share, { dots: true });
    if (training.found.length)
      panel("Mixture found so far", "The mixture the strategy looks for.", steps, training.found, { marks });
  }
}

function influence(parent, run) {
  const part = section(parent, "influence", "Influence", "What training on a dataset brings the dev sets, over all of them "
    + "or one. Bands: ± 1.96 standard errors of the distance from the mean of all datasets.");
  const measured = run.trainings.filter(training => training.influence.all);
  const state = { hidden: new Set(), log: false }, pick = node("select", { id: "target" }), panels = node("div");
  for (const target of new Set(measured.flatMap(training => Object.keys(training.influence))))
    pick.append(node("option", { value: target }, target === "all" ? "all dev sets" : target));
  const edge = (values, errors, sign) => errors && values.map((v, j) => (v === null || errors[j] === null ? null : v + sign * 1.96 * errors[j]));
  let draws = [];
  function build() {
    panels.replaceChildren();
    draws = measured.filter(training => training.influence[pick.value]).map(training => {
      const values = training.influence[pick.value], errors = pick.value === "all" ? training.error : [];
      const lines = values.map((ys, i) => ({
        name: training.datasets[i], ys, low: edge(ys, errors[i], -1), high: edge(ys, errors[i], 1),
      }));
      return chart(panels, {
        title: `${stage(training)}Influence on ${pick.selectedOptions[0].textContent}`, lines, format: plain, dots: true,
        label: `Influence of ${lines.length} datasets at ${training.updates.length} updates.`,
        xs: training.updates, xMax: training.steps.at(-1),
      }, state);
    });
  }
  pick.addEventListener("change", build);
  if (pick.options.length > 1) part.append(node("label", {}, "Influence on ", pick));
  const names = [...new Set(measured.flatMap(training => training.datasets))];
  part.append(legend(names, state, () => draws.forEach(draw => draw())), panels);
  build();
}

function progress(parent, run) {
  const kept = run.selected ? `; kept was the model of step ${run.selected}` : "";
  const part = section(parent, "progress", "Loss and dev", `Thin upright lines: updates${kept}.`);
  const state = { hidden: new Set(), log: false }, draws = [], pair = node("div", { class: "pair" });
  const looked = Object.entries(run.selection);
  const devs = [...new Set([...run.trainings.flatMap(training => Object.keys(training.dev)), ...looked.map(([name]) => name)])];
  if (devs.length > 1) part.append(legend(devs, state, () => draws.forEach(draw => draw()), "Shown dev sets"));
  part.append(pair);
  for (const training of run.trainings) {
    const common = { format: plain, xMax: training.steps.at(-1) };
    if (training.loss.length) chart(pair, {
      ...common, title: `${stage(training)}Training loss`, label: "Training loss over steps.", marks: training.updates,
      xs: training.loss.map(([s]) => s), lines: [{ name: "loss", ys: training.loss.map(([, v]) => v) }],
    });
    const lines = Object.entries(training.dev).map(([name, ys]) => ({ name, ys })).filter(line => line.ys.some(v => v !== null));
    if (lines.length) draws.push(chart(pair, {
      ...common, title: `${stage(training)}What the sampler measures on dev rows, at updates`, dots: true,
      label: `Measure on ${lines.length} dev sets at updates.`, xs: training.updates, lines,
    }, state));
  }
  if (looked.length) draws.push(chart(pair, {
    format: points, title: `Dev NDCG@10 of checkpoints${run.selected ? "; upright line: the one kept" : ""}`, dots: true,
    label: "NDCG@10 on the dev sets at checkpoints.", xs: looked[0][1].map(([s]) => s), xMax: run.steps,
    lines: looked.map(([name, line]) => ({ name, ys: line.map(([, v]) => v) })), marks: run.selected ? [run.selected] : [],
  }, state));
}

function queries(parent, run) {
  const part = section(parent, "queries", "Best and worst dev queries", "Each query is ranked against the passages of the "
    + "first dev rows (1,000 at most), far fewer than a corpus has: this tells queries apart and is no score to report.");
  for (const [name, found] of Object.entries(run.queries)) {
    const count = `: ${found.looked_at} ${found.looked_at === 1 ? "query" : "queries"}, NDCG@10 ${points(found.ndcg)}`;
    const details = node("details", { class: "queries" }, node("summary", {}, node("b", {}, name), count));
    if (found.best.length) details.append(texts(`Best ${found.best.length}`, name, found.best));
    if (found.worst.length) details.append(texts(`Worst ${found.worst.length}`, name, found.worst));
    part.append(details);
  }
}

function texts(title, name, list) {
  const head = ["query", "rank", "its passage", "best-ranked other passage"];
  const rows = list.map(({ query, rank, among, positive, other }) => node("tr", {}, node("th", { scope: "row" }, query),
    ...[`${rank} of ${among}`, positive, other || "–"].map(text => node("td", {}, text))));
  const top = node("thead", {}, node("tr", {}, ...head.map(text => node("th", { scope: "col" }, text))));
  const whole = node("table", {}, node("caption", {}, title), top, node("tbody", {}, ...rows));
  return node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title} of ${name}` }, whole);
}

// ---- the page

function contents() {
  const links = [...document.querySelectorAll("main section")].map(part => node("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
  document.getElementById("contents").replaceChildren(...links);
}

report.runs.forEach(run => run.trained_on.forEach(look));
together(document.getElementById("together"));
const host = document.getElementById("single"), body = node("div"), pick = node("select", { id: "run" });
report.runs.forEach((run, i) => pick.append(node("option", { value: i }, called(run))));
pick.addEventListener("change", () => { single(body, report.runs[pick.value]); contents(); });
host.append(node("div", { class: "picker" }, node("label", {}, "One run: ", pick)), body);
pick.value = Math.max(0, report.runs.findIndex(run => run.trainings.some(training => training.influence.all)));
single(body, report.runs[pick.value]);
contents();
