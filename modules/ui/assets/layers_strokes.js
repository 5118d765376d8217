// Strokes of layers: brush with pressure, areas (lasso and rectangle), and what a fill covers as runs of pixels. All are
// numbers, so that a reload and undo draw them again.
(() => {
  const fw = window.featherweight;
  const LIGHTEST = 0.15; // the share of its size that a brush has under the lightest touch of a pen
  const TOLERANCE = 32; // of a channel, in which a fill takes a color for the same

  // What a pointer's pressure makes of the brush; mouse and finger have none.
  const pressureOf = ({ pointerType, pressure }) => (pointerType === "pen" ? LIGHTEST + (1 - LIGHTEST) * (pressure ?? 1) : 1);

  function boxOf(stroke) {
    if (stroke.rows) {
      const ends = stroke.rows.flat();
      const [left, right] = [ends.reduce((a, b) => Math.min(a, b), Infinity), ends.reduce((a, b) => Math.max(a, b), -Infinity)];
      return { x: left, y: stroke.y, width: right - left, height: stroke.rows.length * (stroke.rowHeight ?? 1) };
    }
    const around = (stroke.size || 0) / 2;
    const [xs, ys] = [0, 1].map((axis) => stroke.points.map((point) => point[axis]));
    const least = (list) => list.reduce((a, b) => Math.min(a, b), Infinity) - around;
    const most = (list) => list.reduce((a, b) => Math.max(a, b), -Infinity) + around;
    return { x: least(xs), y: least(ys), width: most(xs) - least(xs), height: most(ys) - least(ys) };
  }

  // Draw a stroke; `color` instead of its own for masks and regions.
  function draw(context, stroke, color = stroke.color) {
    context.save();
    context.globalCompositeOperation = stroke.erase ? "destination-out" : "source-over";
    context.strokeStyle = context.fillStyle = stroke.erase ? "#000" : color;
    if (stroke.rows) drawRuns(context, stroke);
    else if (stroke.isArea) drawArea(context, stroke.points);
    else drawBrush(context, stroke);
    context.restore();
  }

  // As one path, so that no seam shows between rows that do not lie on whole pixels.
  function drawRuns(context, { rows, y, rowHeight = 1 }) {
    context.beginPath();
    rows.forEach((ends, row) => {
      for (let at = 0; at < ends.length; at += 2) context.rect(ends[at], y + row * rowHeight, ends[at + 1] - ends[at], rowHeight);
    });
    context.fill();
  }

  function drawArea(context, points) {
    context.beginPath();
    points.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fill();
  }

  function drawBrush(context, { points, size }) {
    context.lineCap = context.lineJoin = "round";
    const [[x, y, pressure = 1], ...rest] = points;
    if (!rest.length) {
      context.beginPath();
      context.arc(x, y, (size * pressure) / 2, 0, 2 * Math.PI);
      context.fill();
      return;
    }
    if (points.every(([, , force = 1]) => force === pressure)) {
      context.lineWidth = size * pressure;
      context.beginPath();
      context.moveTo(x, y);
      rest.forEach((point) => context.lineTo(point[0], point[1]));
      context.stroke();
      return;
    }
    let before = points[0];
    for (const point of rest) {
      context.lineWidth = (size * ((before[2] ?? 1) + (point[2] ?? 1))) / 2;
      context.beginPath();
      context.moveTo(before[0], before[1]);
      context.lineTo(point[0], point[1]);
      context.stroke();
      before = point;
    }
  }

  // A rectangle between two corners as the points of an area.
  const rectangle = ([left, top], [right, bottom]) => [[left, top], [right, top], [right, bottom], [left, bottom]];

  // What has the color of a pixel and hangs together with it: {y, rows}, each row the ends of its runs. `picture` is an
  // ImageData, or {data, width, height}. Null outside of it.
  function flooded(picture, x, y, tolerance = TOLERANCE) {
    const { data, width, height } = picture;
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    const first = 4 * (y * width + x);
    const wanted = [data[first], data[first + 1], data[first + 2], data[first + 3]];
    const isSame = (place) => {
      const at = 4 * place;
      if (wanted[3] === 0 && data[at + 3] === 0) return true; // transparent pixels have no color
      for (let channel = 0; channel < 4; channel += 1) {
        if (Math.abs(data[at + channel] - wanted[channel]) > tolerance) return false;
      }
      return true;
    };
    const taken = new Uint8Array(width * height);
    const rows = new Map();
    const open = [[x, y]];
    while (open.length) {
      const [column, row] = open.pop();
      const line = row * width;
      if (taken[line + column] || !isSame(line + column)) continue;
      let [left, right] = [column, column + 1];
      while (left > 0 && !taken[line + left - 1] && isSame(line + left - 1)) left -= 1;
      while (right < width && !taken[line + right] && isSame(line + right)) right += 1;
      taken.fill(1, line + left, line + right);
      if (!rows.has(row)) rows.set(row, []);
      rows.get(row).push(left, right);
      for (const next of [row - 1, row + 1]) {
        if (next < 0 || next >= height) continue;
        let isOpen = false;
        for (let at = left; at < right; at += 1) {
          const fits = !taken[next * width + at] && isSame(next * width + at);
          if (fits && !isOpen) open.push([at, next]);
          isOpen = fits;
        }
      }
    }
    const top = Math.min(...rows.keys());
    return { y: top, rows: Array.from({ length: Math.max(...rows.keys()) - top + 1 }, (_, row) => rows.get(top + row) || []) };
  }

  fw.strokes = { pressureOf, boxOf, draw, rectangle, flooded };
})();
