"use strict";

// Charts are data in a script element beside them; colours in it are names of CSS variables.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const coloured = (key, value) => (typeof value === "string" && value.startsWith("--") ? css(value) : value);

function draw(chart) {
  const { data, layout } = JSON.parse(chart.querySelector("script").textContent, coloured);
  const narrow = chart.clientWidth < 560;
  const axis = { gridcolor: css("--rule"), linecolor: css("--dim"), zerolinecolor: css("--rule"), automargin: true };
  const entries = data.filter((trace) => trace.visible !== false && trace.showlegend !== false).length;
  const below = { orientation: "h", x: 0, y: 0, yanchor: "bottom", yref: "container" };
  layout.template = {
    data: { scatter: [{ mode: "lines+markers", marker: { size: 5 }, line: { width: 1.6 } }] },
    layout: {
      font: { family: "system-ui, sans-serif", size: 12, color: css("--ink") },
      paper_bgcolor: css("--page"), plot_bgcolor: css("--page"),
      xaxis: axis, yaxis: axis, hoverlabel: { namelength: -1 }, showlegend: entries > 1,
      margin: { l: 50, r: 10, t: 40, b: 40 },
      legend: narrow ? below : {},
      height: narrow ? 320 + (entries > 1 ? 19 * Math.ceil(entries / (chart.clientWidth < 400 ? 1 : 2)) : 0) : 340,
    },
  };
  const name = chart.closest("figure").querySelector("figcaption").textContent.replace(/[^\w.-]+/g, "-");
  const svg = {
    name: "svg", title: "Download plot as SVG", icon: Plotly.Icons.disk,
    click: (plot) => Plotly.downloadImage(plot, { format: "svg", filename: name }),
  };
  Plotly.newPlot(chart.querySelector(".plot"), data, layout, {
    responsive: true, displaylogo: false, modeBarButtonsToAdd: [svg],
    showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "png", scale: 3, filename: name },
  });
}

// Charts are drawn when they are scrolled to, and again in the colours of another scheme.
const drawn = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !drawn.has(target)) {
      drawn.add(target);
      draw(target);
    }
  }
}, { rootMargin: "300px" });
document.querySelectorAll(".chart").forEach((chart) => observer.observe(chart));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));

// A click on the head of a column sorts its table.
const value = (row, column) => {
  const text = row.cells[column].textContent;
  const number = parseFloat(text.replace("−", "-").replace("<", ""));
  return Number.isNaN(number) ? text : number;
};
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1);
  const rows = [...body.rows].sort((a, b) => order(value(a, column), value(b, column)));
  body.append(...(down ? rows.reverse() : rows));
}
document.querySelectorAll("th button").forEach((button) => {
  button.addEventListener("click", () => sort(button.closest("th")));
});

// Differences are shown to the baseline that the reader chooses.
document.querySelector("#baseline")?.addEventListener("change", (event) => {
  document.querySelectorAll(".contrast").forEach((table) => {
    table.hidden = table.dataset.base !== event.target.value;
  });
});
