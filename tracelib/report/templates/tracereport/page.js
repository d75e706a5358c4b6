// A link into what is folded opens it.
(() => {
  const opened = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", opened);
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(opened));
  if (location.hash) opened();

  // What lies in a folded part is not printed; a chart's and the footer's tables are.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.finding, footer details")) details.open = true;
  });
})();
