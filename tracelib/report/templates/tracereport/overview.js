// Look into the overview: point to see what each lane was at a moment, zoom, move, follow a row of evidence. The picture
// below the canvas stays as it is: for paper, and until something is asked of it. Texts are set as text only.
(async () => {
  const figure = document.getElementById("overview");
  const packed = figure && figure.querySelector("script.lanes");
  if (!packed || !window.DecompressionStream) return;
  const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
  packed.remove();
  const plain = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const { width, height, left, right, strip, tops, foot, length, borders, least, unit, hatches, lanes, near } = JSON.parse(plain);

  // Events come as steps from one's end to the next: here each gets its start and its end.
  for (const part of near) {
    part.lanes = part.lanes.map((steps) => {
      if (!steps) return null;
      const events = [];
      let at = part.from;
      for (let i = 0; i < steps.length; i += 3) {
        const from = at + steps[i] * unit;
        at = from + steps[i + 1] * unit;
        events.push([from, at, steps[i + 2]]);
      }
      return events;
    });
  }

  const scroll = figure.querySelector(".scroll"), holder = figure.querySelector(".holder");
  const svg = holder.querySelector("svg"), tools = figure.querySelector(".zoom");
  const output = tools.querySelector("output"), code = tools.querySelector(".cmd code");
  const headlines = [...svg.querySelectorAll(".tl-now")], said = headlines.map((text) => text.textContent);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const ZERO = 0x100, STEPS = 200, CLOSEST = 20000;  // how shares are written; the shortest view, in ns

  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  const upper = tops[0] - 6, lower = foot + 22, side = 30;  // beside the lanes, for the labels of the axis
  Object.assign(canvas.style, {
    left: `${(100 * (left - side)) / width}%`, width: `${(100 * (right - left + 2 * side)) / width}%`,
    top: `${(100 * upper) / height}%`, height: `${(100 * (lower - upper)) / height}%`,
  });
  holder.append(canvas);
  tools.hidden = false;
  const pen = canvas.getContext("2d");
  const view = { from: 0, to: length };
  let cursor = null, marked = null, dragged = null, scale = 1;

  const whole = () => view.from <= 0 && view.to >= length;
  const share = (row, bin) => (row.charCodeAt(bin) - ZERO) / STEPS;
  const binAt = (ns) => Math.min(borders - 1, Math.max(0, Math.floor((ns * borders) / length)));
  const xOf = (ns) => ((ns - view.from) / (view.to - view.from)) * (right - left);
  const nsAt = (x) => view.from + (x / (right - left)) * (view.to - view.from);
  // Events are drawn one by one where a stretch that has them fills much of the view.
  const close = () => near.filter((part) => part.from < view.to && part.to > view.from && 4 * (part.to - part.from) >= view.to - view.from);

  const time = (ns, step) => {
    const [of, name] = Math.max(ns, step) >= 1e9 ? [1e9, "s"] : [1e6, "ms"];
    return `${(ns / of).toFixed(Math.max(0, Math.ceil(-Math.log10(step / of))))} ${name}`;
  };
  const ticks = () => {
    const span = view.to - view.from, rough = 10 ** Math.floor(Math.log10(span / 4));
    const step = [5, 2, 1].map((n) => n * rough).find((n) => span / n >= 4) ?? rough;
    return [...Array(Math.floor(span / step) + 2).keys()].map((i) => [(Math.ceil(view.from / step) + i) * step, step]).filter(([ns]) => ns <= view.to);
  };

  // Colours are those that the picture has right now, in light and in dark.
  const colour = (css) => getComputedStyle(svg.querySelector(`.tl-${css}`) ?? svg).fill;
  let paints = null;
  const paintsNow = () => (paints ??= lanes.map((lane) => lane.css.map((css, i) => {
    const tile = document.createElement("canvas"), size = 8;
    const pattern = hatches[lane.hatch[i]], ground = colour(css);
    if (!pattern) return ground;
    tile.width = tile.height = size * scale;
    const pencil = tile.getContext("2d");
    pencil.scale(scale, scale);
    pencil.fillStyle = ground; pencil.fillRect(0, 0, size, size);
    pencil.strokeStyle = getComputedStyle(svg.querySelector(".tl-h")).stroke; pencil.lineWidth = 1.2;
    pencil.stroke(new Path2D(pattern));
    const paint = pen.createPattern(tile, "repeat");
    paint.setTransform(new DOMMatrix().scale(1 / scale));
    return paint;
  })));
  const retint = () => { paints = null; draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retint);

  const drawBins = (lane, paint, base) => {
    const first = binAt(view.from), last = binAt(view.to);
    for (let bin = first; bin <= last; bin++) {
      const from = xOf((bin * length) / borders), to = xOf(((bin + 1) * length) / borders);
      let sum = 0;
      lane.shares.forEach((row, state) => {
        let part = share(row, bin);
        if (part && lane.shares.length === 1) part = Math.max(part, least);
        if (!part) return;
        pen.fillStyle = paint[state];
        pen.fillRect(from, base - (sum + part) * strip, to - from + 0.3, part * strip);
        sum += part;
      });
    }
  };
  const drawEvents = (events, paint, base) => {
    for (const [from, to, state] of events) {
      pen.fillStyle = paint[state];
      pen.fillRect(xOf(from), base - strip, Math.max(xOf(to) - xOf(from), 0.6), strip);
    }
  };
  const drawLanes = () => {
    const style = getComputedStyle(document.body), ink = getComputedStyle(headlines[0]).fill;
    pen.fillStyle = style.backgroundColor;
    pen.fillRect(0, 0, right - left, lower - upper);
    pen.fillRect(-side, foot + 5 - upper, right - left + 2 * side, 20);
    const parts = close();
    lanes.forEach((lane, n) => {
      const base = tops[n] - upper + strip, paint = paintsNow()[n];
      const ground = () => { pen.globalAlpha = 0.12; pen.fillStyle = "#808080"; };
      ground(); pen.fillRect(0, base - strip, right - left, strip); pen.globalAlpha = 1;
      drawBins(lane, paint, base);
      for (const part of parts) {
        const events = part.lanes[n];
        if (!events) continue;
        const from = Math.max(0, xOf(part.from)), to = Math.min(right - left, xOf(part.to));
        pen.fillStyle = style.backgroundColor; pen.fillRect(from, base - strip, to - from, strip);
        ground(); pen.fillRect(from, base - strip, to - from, strip); pen.globalAlpha = 1;
        pen.save(); pen.beginPath(); pen.rect(from, base - strip, to - from, strip); pen.clip();
        drawEvents(events, paint, base);
        pen.restore();
      }
    });
    pen.font = '11px "DejaVu Sans", system-ui, sans-serif';
    pen.textAlign = "center";
    for (const [ns, step] of ticks()) {
      const x = xOf(ns);
      pen.globalAlpha = 0.35; pen.fillStyle = ink; pen.fillRect(x - 0.5, 3, 1, foot + 4 - upper - 3);
      pen.globalAlpha = 1; pen.fillText(time(ns, step), x, foot + 17 - upper);
    }
  };
  const shade = (from, to, ink) => {
    pen.globalAlpha = 0.18; pen.fillStyle = ink; pen.fillRect(from, 0, Math.max(to - from, 1), foot - upper); pen.globalAlpha = 1;
  };
  const draw = () => {
    const box = canvas.getBoundingClientRect();
    scale = ((window.devicePixelRatio || 1) * box.width) / (right - left + 2 * side);
    canvas.width = Math.round((right - left + 2 * side) * scale); canvas.height = Math.round((lower - upper) * scale);
    pen.setTransform(scale, 0, 0, scale, side * scale, 0);
    const ink = getComputedStyle(headlines[0]).fill;
    if (!whole()) drawLanes();
    if (marked) shade(xOf(marked.from), xOf(marked.to), ink);
    if (dragged) shade(Math.min(dragged.x, dragged.now), Math.max(dragged.x, dragged.now), ink);
    if (cursor !== null) { pen.fillStyle = ink; pen.fillRect(xOf(cursor) - 0.75, 0, 1.5, foot - upper); }
    figure.dataset.from = Math.round(view.from); figure.dataset.to = Math.round(view.to);
    if (code) {
      const at = (ns) => Math.max(0, (ns + Number(code.dataset.after)) / 1e9).toFixed(6);
      code.textContent = `${code.dataset.words} ${at(view.from)}:${at(view.to)}`;
    }
  };

  // What a lane was at a moment: the event that is there, or the shares of the bin.
  const was = (n, ns) => {
    const lane = lanes[n];
    for (const part of close()) {
      const events = part.lanes[n];
      if (!events || ns < part.from || ns >= part.to) continue;
      const there = events.find(([from, to]) => ns >= from && ns < to);
      return there ? lane.states[there[2]] : "nothing";
    }
    const bin = binAt(ns);
    const shares = lane.shares.map((row, i) => [share(row, bin), lane.states[i]]).filter(([part]) => part > 0);
    shares.sort(([a], [b]) => b - a);
    if (!shares.length) return "nothing";
    if (shares[0][0] > 0.99) return shares[0][1];
    return shares.slice(0, 2).map(([part, name]) => `${name} ${Math.max(1, Math.round(100 * part))} %`).join(", ");
  };
  const tell = (aloud) => {
    const now = cursor === null ? said : lanes.map((_, n) => was(n, cursor));
    headlines.forEach((text, n) => { text.textContent = now[n].length > 33 ? `${now[n].slice(0, 32)}…` : now[n]; });
    const at = cursor === null ? `${time(view.from, (view.to - view.from) / 100)} to ${time(view.to, (view.to - view.from) / 100)}` : `at ${time(cursor, (view.to - view.from) / 1000)}`;
    output.replaceChildren(at);
    if (aloud && cursor !== null) {
      const all = document.createElement("span");
      all.textContent = `: ${lanes.map((lane, n) => `${lane.name}: ${now[n]}`).join("; ")}`;
      output.append(all);
    }
  };
  const show = (from, to) => {
    const span = Math.min(length, Math.max(CLOSEST, to - from));
    view.from = Math.min(Math.max(0, from), length - span);
    view.to = view.from + span;
    draw(); tell();
  };
  const zoom = (factor, at = cursor ?? (view.from + view.to) / 2) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  const all = () => { marked = null; show(0, length); };
  const point = (part) => {
    const span = view.to - view.from;
    cursor = Math.min(length - 1, Math.max(0, (cursor ?? view.from + span / 2) + part * span));
    if (cursor < view.from || cursor >= view.to) move(Math.sign(part) / 2); else draw();
    tell(true);
  };
  const does = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.5), right: () => move(0.5), all };
  for (const button of tools.querySelectorAll("[data-do]")) button.addEventListener("click", does[button.dataset.do]);

  const keys = {
    ArrowLeft: (shift) => (shift ? move(-0.25) : point(-0.01)), ArrowRight: (shift) => (shift ? move(0.25) : point(0.01)),
    "+": does.in, "=": does.in, "-": does.out, 0: all, Home: all,
    Escape: () => { cursor = null; draw(); tell(); },
  };
  scroll.addEventListener("keydown", (event) => {
    const key = keys[event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    key(event.shiftKey);
  });

  const xAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * (right - left + 2 * side) - side;
    return Math.min(right - left, Math.max(0, x));
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    dragged = { x: xAt(event), now: xAt(event), pan: event.shiftKey, from: view.from, to: view.to };
  });
  canvas.addEventListener("pointermove", (event) => {
    const x = xAt(event);
    if (dragged && dragged.pan) {
      const by = ((dragged.x - x) / (right - left)) * (dragged.to - dragged.from);
      show(dragged.from + by, dragged.to + by);
      return;
    }
    if (dragged) dragged.now = x;
    cursor = Math.min(nsAt(x), length - 1);
    draw(); tell();
  });
  canvas.addEventListener("pointerup", () => {
    const drag = dragged;
    dragged = null;
    if (drag && !drag.pan && Math.abs(drag.now - drag.x) > 4) show(nsAt(Math.min(drag.x, drag.now)), nsAt(Math.max(drag.x, drag.now)));
    else draw();
  });
  canvas.addEventListener("pointerleave", () => { if (!dragged) { cursor = null; draw(); tell(); } });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, nsAt(xAt(event))); }
    else if (!whole() && Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move(event.deltaX / 1000); }
  }, { passive: false });

  // A row of evidence: its moment becomes a button that shows it here.
  for (const place of document.querySelectorAll(".when[data-at]")) {
    const from = Number(place.dataset.at), lasts = Number(place.dataset.for);
    const button = document.createElement("button");
    button.type = "button"; button.className = "go"; button.title = "show it in the overview";
    button.append(...place.childNodes);
    place.append(button);
    button.addEventListener("click", () => {
      marked = { from, to: from + lasts };
      const margin = Math.max(lasts / 2, 1e6);
      show(from - margin, from + lasts + margin);
      // The way back is the browser's own: to the row that was left.
      const row = place.closest("details");
      if (row && row.id) history.replaceState(null, "", `#${row.id}`);
      history.pushState(null, "", "#overview");
      figure.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
      scroll.focus({ preventScroll: true });
    });
  }
  // A command that is unfolded is copied, where the browser lets it.
  document.addEventListener("toggle", (event) => {
    const part = event.target;
    if (!part.open || !part.classList.contains("cmd") || !navigator.clipboard) return;
    navigator.clipboard.writeText(part.querySelector("code").textContent).then(() => {
      const status = document.createElement("small");
      status.setAttribute("role", "status");
      status.textContent = "copied";
      if (!part.querySelector("small")) part.append(status);
    }, () => {});
  }, true);
  addEventListener("resize", draw);
  addEventListener("beforeprint", () => { cursor = null; tell(); });
  draw(); tell();
  figure.dataset.ready = "yes";
})();
