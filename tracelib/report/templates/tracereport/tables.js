// Tables sort by any column; a long one shows its first rows, and filters. Without this script all rows stand there.
(() => {
  const ROWS = 10;
  const UNITS = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, min: 60e9 };
  const FIGURE = /^[<>+]?(?:at least )?(-?\d[\d,]*(?:\.\d+)?)\s*(ns|µs|ms|s|min)?(?![\w.])/;
  // What a cell sorts by: its data-value, a number (a time in ns), or its text; null if it holds nothing.
  const worth = (cell) => {
    if (!cell) return null;
    const number = cell.classList.contains("n");
    const text = (cell.dataset.value ?? cell.textContent).trim();
    if (text === "" || text === "not known") return null;
    if (number && cell.dataset.value !== undefined) return Number(text);
    const figure = number && FIGURE.exec(text.replace(/\u00a0/g, " "));
    return figure ? Number(figure[1].replaceAll(",", "")) * (UNITS[figure[2]] ?? 1) : text;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });

  const sortable = (table, redraw) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const number = head.classList.contains("n");
        const before = head.getAttribute("aria-sort");
        const down = before ? before === "ascending" : number;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [worth(row.cells[at]), row]);
        rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : compare(a, b) * (down ? -1 : 1)));
        body.append(...rows.map(([, row]) => row));
        redraw();
      });
    });
  };

  const foldable = (table) => {
    const rows = () => [...table.tBodies[0].rows];
    const long = rows().length > ROWS + 2;
    if (!long) return () => {};
    const tools = document.createElement("p");
    tools.className = "tools";
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "filter";
    field.setAttribute("aria-label", `Filter the rows of: ${table.caption ? table.caption.textContent : "the table"}`);
    const button = document.createElement("button");
    button.type = "button";
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    tools.append(field, button, said);
    let all = false;
    const redraw = () => {
      const wanted = field.value.toLowerCase();
      const matching = rows().filter((row) => row.textContent.toLowerCase().includes(wanted));
      const shown = new Set(all ? matching : matching.slice(0, ROWS));
      for (const row of rows()) row.hidden = !shown.has(row);
      button.hidden = matching.length <= ROWS;
      button.textContent = all ? `show ${ROWS}` : `show all ${matching.length}`;
      said.textContent = `${shown.size} of ${rows().length} rows`;
    };
    button.addEventListener("click", () => { all = !all; redraw(); });
    field.addEventListener("input", redraw);
    (table.closest(".scroll") ?? table).after(tools);
    redraw();
    return redraw;
  };

  for (const table of document.querySelectorAll("table")) {
    if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 2) continue;
    sortable(table, foldable(table));
  }
})();
