// Unpack plotly.js from the page itself when the first chart comes into sight, and draw each figure in the room that
// was kept for it: a chart in a folded part when that is opened. No request is made.
(() => {
  const packed = document.getElementById("plotly-gz");
  const config = {
    responsive: true, displaylogo: false, showTips: false, scrollZoom: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  let loading;
  const loaded = () => (loading ??= (async () => {
    const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
    packed.remove();
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
  })());

  // What plotly does not break by itself: a title, a row's name or a legend's entry that is wider than a phone.
  // A word that is longer than a line, as a kernel's name is, is cut; what stands for one character stays whole.
  const pieces = (word, length) => {
    const characters = /^<.*>$/.test(word) ? [word] : word.match(/&[^;\s]+;|<[^>]*>|[^]/gu) ?? [word];
    return Array.from({ length: Math.ceil(characters.length / length) }, (_, n) => characters.slice(n * length, (n + 1) * length).join(""));
  };
  const broken = (text, length) => text.split(" ").flatMap((word) => pieces(word, length)).reduce((lines, word) => {
    const last = lines[lines.length - 1];
    return last && (last + " " + word).length <= length ? [...lines.slice(0, -1), last + " " + word] : [...lines, word];
  }, []).join("<br>");
  const forNarrow = (room, data, layout) => {
    const characters = Math.floor(room.clientWidth / 17);
    for (const [name, axis] of Object.entries(layout)) {
      if (/^xaxis/.test(name) && axis.title && axis.title.text) axis.title.text = broken(axis.title.text, characters);
      if (/^yaxis/.test(name) && axis.ticktext) {
        axis.ticktext = axis.ticktext.map((text) => broken(text, characters + 6));
        axis.tickfont = { ...axis.tickfont, size: 10 };
      }
    }
    for (const trace of data) if (trace.name) trace.name = broken(trace.name, characters + 16);
    for (const note of layout.annotations || []) note.xanchor = "auto";
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const draw = async (figure) => {
    const room = figure.querySelector(".plot");
    const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
    const narrow = room.clientWidth < 560;
    Object.assign(layout, { autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: narrow ? false : layout.dragmode || "zoom" });
    if (narrow) forNarrow(room, data, layout);
    if (still) layout.transition = { duration: 0 };
    delete layout.width;
    // With a single tick well in sight plotly 4.1 puts a label at minus infinity: show whole decades and a little more.
    for (const [name, axis] of Object.entries(layout)) {
      if (/^[xy]axis/.test(name) && axis.type === "log" && axis.range && Math.abs(axis.range[1] - axis.range[0]) < 1) {
        axis.range = [Math.floor(Math.min(...axis.range)) - 0.1, Math.ceil(Math.max(...axis.range)) + 0.1];
      }
    }
    await Plotly.newPlot(room, data, layout, config);
    // To a screen reader the caption and the table say what the picture shows; its hundreds of parts do not.
    for (const part of room.querySelectorAll("svg")) part.setAttribute("aria-hidden", "true");
    await new Promise((next) => setTimeout(next));
  };

  const waiting = new Set(packed ? document.querySelectorAll("figure.chart") : []);
  // Draw what can be seen and is not drawn; the page's root says when all of that is done.
  const drawn = async () => {
    for (const figure of waiting) {
      if (figure.closest("details:not([open])")) continue;
      waiting.delete(figure);
      await loaded();
      await draw(figure);
    }
    document.documentElement.dataset.charts = "drawn";
  };
  document.addEventListener("toggle", (event) => {
    if (!event.target.open || ![...waiting].some((figure) => event.target.contains(figure))) return;
    delete document.documentElement.dataset.charts;
    drawn();
  }, true);
  drawn();
})();
