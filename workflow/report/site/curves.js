/* Training curves: which are drawn, over what, and their values below the pointer. Vega-Lite draws them; its source is
   unpacked when the first curves are shown. */
"use strict";

(() => {
  const one = (selector, inside = document) => inside.querySelector(selector);
  const make = (tag, options = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), options);
    element.append(...children);
    return element;
  };
  const DATA = JSON.parse(one("#curve-data").textContent);
  const INK = "#1d2126", SOFT = "#59616b", GRID = "#e4e7eb";
  const MOST_BANDS = 10, MOST_CURVES = 12, FIRST = 8;
  const OVER = { step: "steps", seconds: "training time (s)" };

  let library;
  const load = () => (library ??= (async () => {
    const bytes = Uint8Array.from(atob(one("#vega").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    document.head.append(make("script", { textContent: await new Response(stream).text() }));
  })());

  // Matplotlib's dashes are in widths of the line.
  const dashes = (curve) => curve.dash.map((part) => 1.6 * part);
  const shown = (chart) => chart.measure.curves.filter((curve) => !chart.hidden.has(curve.name));
  /* Of many curves those that end best are on at first. */
  const leaveBest = (chart) => {
    const { curves, name } = chart.measure;
    if (curves.length <= MOST_CURVES) return;
    const worst = name.endsWith("loss") ? Infinity : -Infinity;
    const ends = curves.map((curve) => curve.value[curve.value.length - 1] ?? worst).sort((a, b) => (worst > 0 ? a - b : b - a));
    for (const curve of curves) {
      const end = curve.value[curve.value.length - 1] ?? worst;
      if (worst > 0 ? end > ends[FIRST - 1] : end < ends[FIRST - 1]) chart.hidden.add(curve.name);
    }
  };
  const number = (value) => (value === null ? "–" : Math.abs(value) < 1e6 ? String(Number(value.toPrecision(3))) : value.toExponential(2));

  /* Runs that diverge would flatten the other curves: the axis is that of curves without such runs, and of values that are
     not much larger than at the beginning. */
  const extent = (chart) => {
    const curves = shown(chart), sound = curves.filter((curve) => !curve.broken);
    const most = 3 * Math.max(...curves.map((curve) => Math.abs(curve.value[0] ?? 0)));
    const isDrawn = (value) => value !== null && (!chart.isLog || value > 0) && (!chart.measure.name.endsWith("loss") || value <= most);
    const values = (sound.length ? sound : curves).flatMap((curve) => curve.value).concat(chart.measure.goals).filter(isDrawn);
    if (!values.length) return chart.isLog ? [0.1, 1] : [0, 1];
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    if (chart.isLog) return [low / 1.1, high * 1.1];
    const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
    return [low - room, high + room];
  };

  const specification = (chart) => {
    const curves = shown(chart);
    const range = (names) => ({ domain: chart.measure.curves.map((curve) => curve.name), range: names });
    const rows = curves.flatMap((curve) =>
      curve.value
        .map((value, at) => ({ name: curve.name, x: curve[chart.over][at], value, low: curve.low[at], high: curve.high[at] }))
        .filter((row) => row.value !== null && (!chart.isLog || row.value > 0)),
    );
    const xs = curves.flatMap((curve) => curve[chart.over]);
    const y = { type: "quantitative", scale: { type: chart.isLog ? "log" : "linear", domain: extent(chart), nice: false }, title: null };
    const color = { field: "name", type: "nominal", scale: range(chart.measure.curves.map((curve) => curve.color)), legend: null };
    const dash = { field: "name", type: "nominal", scale: range(chart.measure.curves.map(dashes)), legend: null };
    return {
      width: chart.plot.clientWidth,
      height: Math.max(220, Math.min(400, 0.6 * chart.plot.clientWidth)),
      autosize: { type: "fit", contains: "padding" },
      padding: 2,
      config: {
        view: { stroke: null },
        axis: { labelColor: INK, titleColor: INK, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridColor: GRID, domainColor: SOFT, tickColor: SOFT },
      },
      params: [{ name: "cursor", value: xs[0] || 0 }, { name: "isPointed", value: false }],
      encoding: {
        x: { field: "x", type: "quantitative", title: OVER[chart.over], axis: { grid: false, tickCount: 6 }, scale: { domain: xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1], nice: false } },
      },
      layer: [
        ...chart.measure.goals.map((goal) => ({
          data: { values: [{}] }, mark: { type: "rule", color: SOFT, strokeDash: [2, 3], clip: true }, encoding: { x: null, y: { datum: goal, ...y } },
        })),
        // A layer for each band: as areas of one layer, by name, they came out with the points of several bands.
        ...(curves.length > MOST_BANDS ? [] : curves).map((curve) => ({
          data: { values: rows.filter((row) => row.name === curve.name && row.low !== null && row.high !== null && (!chart.isLog || row.low > 0)).map((row) => ({ ...row })) },
          mark: { type: "area", opacity: 0.14, clip: true, color: curve.color },
          encoding: { y: { field: "low", ...y, stack: null }, y2: { field: "high" } },
        })),
        { data: { name: "lines", values: rows }, mark: { type: "line", strokeWidth: 2, clip: true }, encoding: { y: { field: "value", ...y, axis: { tickCount: 6, format: "~g" } }, color, strokeDash: dash } },
        { data: { values: [{}] }, mark: { type: "rule", color: SOFT }, encoding: { x: { datum: { expr: "cursor" } }, opacity: { value: { expr: "isPointed ? 0.6 : 0" } } } },
      ],
    };
  };

  /* The place of the evaluation next to x. */
  const nearest = (columns, x) => columns.reduce((best, value, at) => (Math.abs(value - x) < Math.abs(columns[best] - x) ? at : best), 0);

  /* Values at a place of the x axis, or at the end of training. */
  const tell = (chart, x) => {
    const end = Math.max(...chart.measure.curves.flatMap((curve) => curve[chart.over]));
    const where = `${number(x ?? end)} ${chart.over === "step" ? "steps" : "s"}`;
    const [on, of] = [shown(chart).length, chart.measure.curves.length];
    chart.where.textContent = `${x === null ? `At the end (${where})` : `After ${where}`}${on < of ? `, ${on} of ${of} on` : ""}`;
    for (const [curve, output] of chart.outputs) {
      const at = nearest(curve[chart.over], x ?? end);
      const interval = curve.low[at] === null || curve.high[at] === null ? "" : ` [${number(curve.low[at])}, ${number(curve.high[at])}]`;
      output.textContent = curve.value.length && curve.value[at] === null ? "diverged" : `${number(curve.value[at] ?? null)}${interval}`;
    }
  };

  const point = (chart, x) => {
    chart.at = x;
    tell(chart, x);
    if (!chart.view) return;
    chart.view.signal("isPointed", x !== null);
    if (x !== null) chart.view.signal("cursor", x);
    chart.view.run();
  };

  const draw = async (chart) => {
    if (!chart.plot.clientWidth) return;
    try {
      await load();
    } catch (problem) {
      chart.plot.textContent = `This browser cannot draw the curves (${problem.message}). Their numbers are in the CSV file.`;
      return;
    }
    const view = new vega.View(vega.parse(vegaLite.compile(specification(chart)).spec), { renderer: "svg", container: chart.plot });
    if (chart.view) chart.view.finalize();
    chart.view = view;
    await view.runAsync();
    point(chart, null);
  };

  const swatch = (curve) => make("span", {
    className: "swatch",
    innerHTML: `<svg><line x1="0" x2="30" y1="6" y2="6" stroke="${curve.color}" stroke-width="2.5" stroke-dasharray="${dashes(curve)}"/></svg>`,
  });

  /* The names with their boxes, which switch curves on and off, and their values. */
  const list = (chart) => {
    chart.outputs = new Map();
    chart.names.replaceChildren(
      ...chart.measure.curves.map((curve) => {
        const box = make("input", { type: "checkbox", checked: !chart.hidden.has(curve.name) });
        box.addEventListener("change", () => {
          chart.hidden[box.checked ? "delete" : "add"](curve.name);
          draw(chart);
        });
        const output = make("output");
        chart.outputs.set(curve, output);
        const runs = `${curve.runs} run${curve.runs > 1 ? "s" : ""}${curve.broken ? `, ${curve.broken} diverged or failed` : ""}`;
        return make("label", { title: `${curve.id}: ${runs}` }, box, swatch(curve), make("span", { textContent: curve.name }), output);
      }),
    );
  };

  const choose = (chart, name, entries, chosen, pick) => {
    const select = make("select", {}, ...entries.map(([value, text]) => new Option(text, value, false, value === chosen)));
    select.addEventListener("change", () => {
      pick(select.value);
      list(chart);
      draw(chart);
    });
    return make("label", { hidden: entries.length < 2 }, `${name} `, select);
  };

  const setUp = (holder) => {
    const panels = DATA[holder.dataset.experiment];
    const chart = { over: "step" };
    const numbered = (entries) => entries.map((entry, place) => [String(place), entry.name]);
    const measures = make("span");
    const setMeasure = (place) => {
      chart.measure = chart.panel.measures[place];
      chart.isLog = chart.measure.logarithmic;
      const axes = [["log", "logarithmic"], ["linear", "linear"]];
      measures.replaceChildren(
        choose(chart, "Measure", numbered(chart.panel.measures), String(place), setMeasure),
        choose(chart, "Axis", axes, chart.isLog ? "log" : "linear", (value) => { chart.isLog = value === "log"; }),
      );
    };
    const setPanel = (place) => {
      chart.panel = panels[place];
      chart.hidden = new Set();
      setMeasure(0);
      leaveBest(chart);
    };
    const all = (isShown) => make("button", { type: "button", className: "button", textContent: isShown ? "All on" : "All off", onclick: () => {
      chart.hidden = new Set(isShown ? [] : chart.measure.curves.map((curve) => curve.name));
      list(chart);
      draw(chart);
    } });
    chart.plot = make("div", { className: "plot", tabIndex: 0, role: "img", ariaLabel: "Curves; the arrow keys move through the evaluations" });
    chart.names = make("div", { className: "names" });
    chart.where = make("b", { role: "status" });
    setPanel(0);
    holder.append(
      make("div", { className: "choices" },
        choose(chart, "Trained", numbered(panels), "0", setPanel), measures,
        choose(chart, "Over", Object.entries(OVER), "step", (value) => { chart.over = value; })),
      make("div", { className: "drawn" }, chart.plot,
        make("div", { className: "key" }, make("p", {}, chart.where, " ", all(true), " ", all(false)), chart.names)),
    );
    list(chart);
    const place = (event) => {
      if (!chart.view) return;
      const left = one("svg", chart.plot).getBoundingClientRect().left + chart.view.origin()[0] + chart.view.padding().left;
      const x = chart.view.scale("x");
      const [first, last] = x.domain();
      point(chart, Math.min(last, Math.max(first, x.invert(event.clientX - left))));
    };
    chart.plot.addEventListener("pointermove", place);
    chart.plot.addEventListener("pointerdown", place);
    chart.plot.addEventListener("pointerleave", () => point(chart, null));
    chart.plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const columns = (shown(chart)[0] || chart.measure.curves[0])[chart.over];
      if (!by || !columns.length) return;
      event.preventDefault();
      const now = chart.at === null ? (by > 0 ? -1 : columns.length) : nearest(columns, chart.at);
      point(chart, columns[Math.min(columns.length - 1, Math.max(0, now + by))]);
    });
    return chart;
  };

  const charts = new Map();
  const show = (page) => {
    for (const holder of page.querySelectorAll(".curves[data-experiment]")) {
      if (!charts.has(holder)) charts.set(holder, setUp(holder));
      draw(charts.get(holder));
    }
  };
  document.addEventListener("page-shown", (event) => show(event.detail));
  let resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => charts.forEach(draw), 100);
  });
})();
