"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const main = document.querySelector("main");
  const hidden = new Map(); // a figure's id -> the labels that are switched off
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const STROKES = ["", "5 2", "1.5 2", "6 2 1.5 2"];
  const FEW = 8; // curves that a common hover box can still list
  const SECONDS_BETWEEN_NEWS = 2;
  const finger = matchMedia("(pointer: coarse)").matches;

  const element = (id) => document.getElementById(id);
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colours = () => data[root.dataset.theme];
  const colourOf = (number) => colours()[number % colours().length];
  const wrapOf = (number) => Math.floor(number / colours().length) % DASHES.length;
  const seeThrough = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
  // Plotly reads tags in its texts; those of a stranger are shown as they are written.
  const plain = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const plainAll = (values) => values.map((v) => (typeof v === "string" ? plain(v) : v));

  // ---- marks -> Plotly's traces

  function edge(mark, y, more) {
    return { type: "scatter", mode: "lines", x: mark.x, y, line: { width: 0 }, hoverinfo: "skip",
      legendgroup: mark.label, ...more };
  }

  function between(mark, alpha) {
    const fill = seeThrough(colourOf(mark.colour), alpha);
    return [edge(mark, mark.low), edge(mark, mark.high, { fill: "tonexty", fillcolor: fill })];
  }

  function lineTraces(mark) {
    const banded = mark.low && mark.high;
    const line = {
      type: "scatter", name: plain(mark.label), legendgroup: mark.label, x: mark.x, y: mark.y,
      mode: mark.markers || mark.x.length === 1 ? "lines+markers" : "lines",
      marker: { size: 6, color: colourOf(mark.colour) },
      line: { width: 2, color: colourOf(mark.colour), dash: mark.dashed ? "dash" : DASHES[wrapOf(mark.colour)] },
      customdata: banded ? mark.x.map((_, i) => [mark.low[i], mark.high[i]]) : undefined,
      // A point that fewer seeds have come to than an interval takes has none.
      hovertemplate: mark.x.map((_, i) => (banded && mark.low[i] !== null
        ? "%{y:.4~g} (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
        : "%{y:.4~g}")),
    };
    return banded ? [...between(mark, 0.18), line] : [line];
  }

  function areaTraces(mark) {
    const [low, high] = between(mark, 0.28);
    return [low, { ...high, name: plain(mark.label) }];
  }

  function barTraces(mark) {
    return [{
      type: "bar", name: plain(mark.label), legendgroup: mark.label, x: plainAll(mark.x), y: mark.height,
      marker: { color: colourOf(mark.colour) }, hovertemplate: "%{y:.4~g}",
    }];
  }

  function heatTraces(mark) {
    const few = mark.rows.length * mark.columns.length <= 120;
    return [{
      type: "heatmap", x: plainAll(mark.columns), y: plainAll(mark.rows), z: mark.shades,
      colorscale: "Cividis", xgap: 1, ygap: 1, texttemplate: few ? "%{z:.3~g}" : "",
      hovertemplate: "%{y}, %{x}: %{z:.4~g}<extra></extra>",
      colorbar: { title: { text: plain(mark.label), side: "right" }, thickness: 10, outlinewidth: 0 },
    }];
  }

  const TRACES = { line: lineTraces, area: areaTraces, bars: barTraces, heat: heatTraces };

  function axis(title, log, named, grid) {
    return {
      title: { text: plain(title), font: { size: 12 }, standoff: 8 }, automargin: true,
      type: named ? "category" : log ? "log" : "linear", exponentformat: "power",
      gridcolor: grid ? variable("--grid") : "transparent", zeroline: false, ticks: "",
      linecolor: variable("--rule"), nticks: named ? 0 : 7, // 0: as many as fit
    };
  }

  const nowhereNegative = (mark) =>
    [mark.y, mark.low, mark.height].every((values) => (values || []).every((v) => v >= 0));

  function layout(chart) {
    const heat = chart.marks.some((m) => m.kind === "heat");
    const bars = chart.marks.some((m) => m.kind === "bars");
    const named = heat || chart.marks.some((m) => m.x && typeof m.x[0] === "string");
    const lines = chart.marks.filter((m) => m.kind === "line").length;
    return {
      autosize: true, showlegend: false, uirevision: "kept", barmode: "group", bargap: 0.15,
      margin: { l: 46, r: 16, t: 30, b: 38 }, // the buttons stand above the curves
      paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: variable("--soft") },
      hovermode: heat || lines > FEW ? "closest" : "x unified",
      hoverlabel: { bgcolor: variable("--card"), bordercolor: variable("--rule"),
        font: { color: variable("--ink"), size: 12 }, namelength: -1 },
      // A finger that scrolls the page must not zoom a chart.
      dragmode: finger ? false : "zoom",
      modebar: { bgcolor: "transparent", color: variable("--soft"), activecolor: variable("--accent") },
      xaxis: axis(chart.x, chart.logX, named, !bars && !heat),
      yaxis: { ...axis(chart.y, chart.logY, heat, !heat), autorange: heat ? "reversed" : true,
        rangemode: chart.marks.every(nowhereNegative) ? "nonnegative" : "normal" },
    };
  }

  function options(name) {
    return {
      responsive: true, displaylogo: false, scrollZoom: false,
      // Named one by one: nothing that would leave this page.
      modeBarButtons: [finger ? ["zoomIn2d", "zoomOut2d", "resetScale2d"]
        : ["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: name },
    };
  }

  // ---- figures

  const plotsOf = (id) => [...element(id).querySelectorAll(".plot")];

  function drawChart(id, place) {
    const figure = data.figures[id];
    const chart = figure.charts[place];
    const off = hidden.get(id) || new Set();
    const traces = chart.marks.flatMap((m) =>
      TRACES[m.kind](m).map((t) => ({ ...t, visible: !off.has(m.label) })));
    return Plotly.react(plotsOf(id)[place], traces, layout(chart), options(figure.name));
  }

  async function drawFigure(id) {
    drawLegend(id);
    for (let place = 0; place < data.figures[id].charts.length; place += 1) {
      if (!data.figures[id] || !plotsOf(id)[place]) return; // gone since, in a live page
      await drawChart(id, place);
      await new Promise((done) => setTimeout(done, 0)); // the page stays quick meanwhile
    }
  }

  async function drawAll() {
    if (typeof Plotly === "undefined") return; // it is still being unpacked
    for (const id of Object.keys(data.figures)) if (element(id)) await drawFigure(id);
    root.dataset.drawn = "yes";
  }

  function swatch(number) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const look = { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colourOf(number), "stroke-width": 3,
      "stroke-dasharray": STROKES[wrapOf(number)] };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  }

  function drawLegend(id) {
    const all = data.figures[id].legend;
    const entries = all.length > 1 ? all : [];
    const off = hidden.get(id) || new Set();
    const box = element(id).querySelector(".legend");
    box.replaceChildren(...entries.map(([label, number]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Click to hide or show; double-click to show it alone, or all again";
      button.setAttribute("aria-pressed", String(!off.has(label)));
      button.append(swatch(number), label);
      button.dataset.label = label;
      return button;
    }));
  }

  function switchOff(id, labels) {
    hidden.set(id, new Set(labels));
    for (const button of element(id).querySelectorAll(".legend button"))
      button.setAttribute("aria-pressed", String(!hidden.get(id).has(button.dataset.label)));
    data.figures[id].charts.forEach((_, place) => drawChart(id, place));
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button");
    if (!button || event.detail > 1) return; // the second click of a double one
    const id = button.closest("figure").id;
    const off = new Set(hidden.get(id));
    if (!off.delete(button.dataset.label)) off.add(button.dataset.label);
    switchOff(id, off);
  });

  main.addEventListener("dblclick", (event) => {
    const button = event.target.closest(".legend button");
    if (!button) return;
    const id = button.closest("figure").id;
    const others = data.figures[id].legend.map(([l]) => l).filter((l) => l !== button.dataset.label);
    const off = hidden.get(id) || new Set();
    const alone = others.length > 0 && others.every((l) => off.has(l));
    switchOff(id, alone ? [] : others);
  });

  // ---- light, dark, paper

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;

  function setTheme(name) {
    if (root.dataset.theme === name) return Promise.resolve();
    root.dataset.theme = name;
    return drawAll();
  }
  const ownTheme = () => chosen || (prefersDark.matches ? "dark" : "light");

  root.dataset.theme = ownTheme();
  prefersDark.addEventListener("change", () => setTheme(ownTheme()));
  element("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosen);
  });

  const PAPER_WIDTH = 660; // pixels between the margins of a sheet
  let folded = [];

  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
    if (typeof Plotly === "undefined") return;
    for (const id of Object.keys(data.figures)) {
      drawLegend(id);
      const { columns } = data.figures[id];
      plotsOf(id).forEach((plot, place) => {
        drawChart(id, place);
        Plotly.relayout(plot, { width: (PAPER_WIDTH - 20 * (columns - 1)) / columns, height: 200 });
      });
    }
  });
  addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
    if (typeof Plotly === "undefined") return;
    for (const id of Object.keys(data.figures)) {
      plotsOf(id).forEach((plot) => Plotly.relayout(plot, { width: null, height: null }));
    }
    root.dataset.theme = "";
    setTheme(ownTheme());
  });

  // ---- news of a run in progress

  const shape = (where) => [...where.querySelectorAll("nav a, h2, section > *, h4")]
    .map((e) => [e.id, e.className, /^[AH]/.test(e.tagName) && e.textContent]).join("\n");

  function replacePart(old, fresh) {
    if (old.matches("figure.figure")) {
      old.querySelectorAll(".note").forEach((note) => note.remove());
      const note = fresh.querySelector(".note");
      if (note) old.append(note);
      return;
    }
    const same = old.cloneNode(true);
    same.removeAttribute("open");
    if (same.outerHTML === fresh.outerHTML) return;
    if (old.open) fresh.open = true;
    const left = old.querySelector(".scroll")?.scrollLeft;
    old.replaceWith(fresh);
    if (left) fresh.querySelector(".scroll").scrollLeft = left;
  }

  async function take(news) {
    const fresh = document.createElement("template");
    fresh.innerHTML = news.body;
    const before = data.figures;
    data.figures = news.figures;
    if (shape(main) !== shape(fresh.content)) {
      main.replaceChildren(fresh.content);
      hidden.clear();
      await drawAll();
      return;
    }
    for (const part of [...fresh.content.querySelectorAll("section > [id]")])
      replacePart(element(part.id), part);
    for (const id of Object.keys(data.figures))
      if (JSON.stringify(before[id]) !== JSON.stringify(data.figures[id])) await drawFigure(id);
  }

  function tell(state, text) {
    const line = element("news");
    line.hidden = false;
    line.dataset.state = state;
    if (line.textContent !== text) line.textContent = text;
  }

  async function follow() {
    setTimeout(follow, 1000 * SECONDS_BETWEEN_NEWS);
    let news;
    try {
      news = await (await fetch("data.json", { cache: "no-store" })).json();
    } catch {
      tell("lost", "fedmom watch does not answer, so nothing new arrives. Start it again to see more.");
      return;
    }
    tell(news.state, news.text);
    if (news.figures) await take(news);
  }

  // ---- Plotly, which the page holds packed

  async function unpack() {
    const text = atob(element("plotly").textContent);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  async function begin() {
    if (typeof DecompressionStream === "undefined") {
      element("old").hidden = false;
      return;
    }
    await unpack();
    await drawAll();
    if (document.body.classList.contains("live")) follow();
  }

  begin();
})();
