// Plots in one style: lines over a common axis, bands behind them, the numbers as a table beneath. The plot takes the
// focus; the arrow keys go from point to point, and the line below says what stands there.
(() => {
  const fw = (window.featherweight ||= {}); // a document of its own has none of the page's scripts
  fw.t ||= (pieces, ...values) => String.raw({ raw: pieces }, ...values);
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDE, HIGH, LEFT, TOP, BOTTOM] = [640, 190, 4, 18, 24];
  const DASHES = ["", "6 3", "2 3", "8 3 2 3"]; // lines differ by more than their colors

  fw.element = (tag, properties = {}, ...children) => {
    const { dataset = {}, attributes = {}, ...rest } = properties;
    const made = Object.assign(document.createElement(tag), rest);
    Object.assign(made.dataset, dataset);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  const shape = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const dashes = (index) => DASHES[(index + Math.floor(index / DASHES.length)) % DASHES.length];

  // A line as the plot has it, before its name.
  function sample(index) {
    const line = shape("line", { x1: 0, x2: 22, y1: 3, y2: 3, class: `fw-plot-line fw-plot-line-${index % 4}`, "stroke-dasharray": dashes(index) });
    const svg = shape("svg", { viewBox: "0 0 22 6", "aria-hidden": "true" });
    svg.append(line);
    return svg;
  }

  // `label` says what is seen; `lines` are { name, points: [[x, y], ...] }; `bands` are { name, from, to, level };
  // `marks` are { name, x }; `showX` and `showY` write numbers; `fromZero` lets the axis begin there; `table` is
  // { head, rows } where the points are not the table.
  fw.plot = ({ label, lines, bands = [], marks = [], showX = String, showY = String, fromZero = false, table }) => {
    const shown = lines.filter((line) => line.points.length);
    const xs = [...shown.flatMap((line) => line.points.map(([x]) => x)), ...bands.flatMap(({ from, to }) => [from, to])];
    const ys = [...shown.flatMap((line) => line.points.map(([, y]) => y)), ...bands.map(({ level }) => level || 0)];
    const first = Math.min(...xs);
    const width = Math.max(...xs) - first || 1;
    const low = fromZero ? 0 : Math.min(...ys);
    const high = Math.max(...ys);
    const x = (value) => LEFT + ((value - first) / width) * (WIDE - 2 * LEFT);
    const y = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (HIGH - TOP - BOTTOM);

    const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label, tabindex: 0 });
    bands.forEach(({ name, from, to, level }, index) => {
      const wide = Math.max(x(to) - x(from), 0.5);
      const band = shape("rect", { x: x(from), y: TOP, width: wide, height: HIGH - TOP - BOTTOM, class: `fw-plot-band-${index % 2}` });
      band.append(shape("title", {}, level === undefined ? name : `${name}: ${showY(level)}`));
      svg.append(band);
      if (level !== undefined) svg.append(shape("line", { x1: x(from), x2: x(from) + wide, y1: y(level), y2: y(level), class: "fw-plot-level" }));
      if (wide > name.length * 6 + 6) svg.append(shape("text", { x: x(from) + 3, y: HIGH - 8 }, name));
    });
    for (const mark of marks) svg.append(shape("line", { x1: x(mark.x), x2: x(mark.x), y1: TOP, y2: HIGH - BOTTOM, class: "fw-plot-level" }));
    shown.forEach((line, index) => {
      if (line.points.length === 1) {
        const [[cx, cy]] = line.points.map((point) => [x(point[0]), y(point[1])]);
        svg.append(shape("circle", { cx, cy, r: 3, class: `fw-plot-dot fw-plot-line-${index % 4}` }));
      }
      const points = line.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
      svg.append(shape("polyline", { points, class: `fw-plot-line fw-plot-line-${index % 4}`, "stroke-dasharray": dashes(index) }));
    });
    svg.append(shape("line", { x1: LEFT, x2: WIDE - LEFT, y1: HIGH - BOTTOM, y2: HIGH - BOTTOM, class: "fw-plot-axis" }));
    svg.append(shape("text", { x: LEFT, y: TOP - 5 }, showY(high)));
    if (!bands.length) {
      svg.append(shape("text", { x: LEFT, y: HIGH - 8 }, showX(first)));
      svg.append(shape("text", { x: WIDE - LEFT, y: HIGH - 8, "text-anchor": "end" }, showX(first + width)));
    }
    const cursor = shape("line", { y1: TOP, y2: HIGH - BOTTOM, class: "fw-plot-cursor", visibility: "hidden" });
    svg.append(cursor);

    const said = fw.element("span", { className: "fw-plot-said", attributes: { "aria-live": "polite" } });
    const legend = shown.map((line, index) => fw.element("span", { className: "fw-plot-name" }, sample(index), line.name));
    const named = marks.map((mark) => fw.element("span", { textContent: mark.name }));
    const stops = [...new Set(shown.flatMap((line) => line.points.map(([at]) => at)))].sort((one, other) => one - other);
    let place = -1;
    const go = (to) => {
      place = Math.min(Math.max(to, 0), stops.length - 1);
      const at = stops[place];
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", x(at));
      cursor.setAttribute("x2", x(at));
      said.textContent = [showX(at), ...shown.map((line) => `${line.name} ${valueAt(line.points, at, showY)}`)].join(" · ");
    };
    const KEYS = { ArrowRight: () => place + 1, ArrowLeft: () => place - 1, Home: () => 0, End: () => stops.length - 1 };
    svg.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || !stops.length) return;
      event.preventDefault();
      go(KEYS[event.key]());
    });
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = first + ((((event.clientX - box.left) / box.width) * WIDE - LEFT) / (WIDE - 2 * LEFT)) * width;
      if (stops.length) go(stops.findIndex((stop) => stop >= at) < 0 ? stops.length - 1 : stops.findIndex((stop) => stop >= at));
    });
    const caption = fw.element("figcaption", {}, ...legend, ...named, said);
    return fw.element("figure", { className: "fw-plot" }, svg, caption, numbers(table || tableOf(shown, stops, showX, showY)));
  };

  // What a line has at a place, or had last before it.
  function valueAt(points, at, showY) {
    const before = points.filter(([x]) => x <= at);
    return before.length ? showY(before[before.length - 1][1]) : "-";
  }

  const tableOf = (lines, stops, showX, showY) => ({
    head: ["", ...lines.map((line) => line.name)],
    rows: stops.map((at) => [showX(at), ...lines.map((line) => valueAt(line.points, at, showY))]),
  });

  function numbers({ head, rows }) {
    const row = (tag, cells) => fw.element("tr", {}, ...cells.map((text) => fw.element(tag, { textContent: text })));
    return fw.element("div", { className: "fw-plot-numbers", attributes: { tabindex: 0, role: "region", "aria-label": head.filter(Boolean).join(", ") } },
      fw.element("table", {}, fw.element("thead", {}, row("th", head)), fw.element("tbody", {}, ...rows.map((cells) => row("td", cells)))));
  }

  // What the server describes (`data-plot` of an element, as JSON) is drawn where it stands.
  const SHOWN = { step: (value) => fw.t`step ${value}`, loss: (value) => value.toPrecision(3), size: (value) => value.toPrecision(2) };
  fw.drawPlots = (root = document) => {
    for (const place of root.querySelectorAll("[data-plot]")) {
      const { x, y, ...spec } = JSON.parse(place.dataset.plot);
      place.removeAttribute("data-plot");
      place.replaceChildren(fw.plot({ ...spec, showX: SHOWN[x], showY: SHOWN[y] }));
    }
  };
  if (window.MutationObserver) {
    new MutationObserver(() => fw.drawPlots()).observe(document.documentElement, { childList: true, subtree: true });
  }
})();
