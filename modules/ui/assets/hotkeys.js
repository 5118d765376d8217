// Ctrl+Enter generates (or begins again), Ctrl+Shift+Enter puts the form in line, Alt+Enter skips, Esc interrupts; right-click on Generate generates forever.
(() => {
  const fw = window.featherweight;

  document.addEventListener("keydown", (event) => {
    const tab = fw.shownTab();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (event.shiftKey) tab.enqueue();
      else if (tab.isRunning()) tab.restart();
      else tab.press("generate");
    } else if (event.key === "Enter" && event.altKey) {
      event.preventDefault();
      tab.press("skip");
    } else if (event.key === "Escape" && tab.isRunning() && !fw.isLightboxOpen()) {
      tab.endForever();
      tab.press("interrupt");
    }
  }, true);

  // Browsers let Tab stop at what scrolls. An open list of choices leaves the page as soon as its field loses the focus,
  // and the focus would be lost with it. Gradio's own handler, which runs after the field was left, would open the list
  // again: it would stay, and fail as soon as an entry is deleted.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") return;
    for (const list of document.querySelectorAll("ul[role=listbox]")) list.tabIndex = -1;
    if (event.target.matches?.("input[role=combobox]")) event.stopPropagation();
  }, true);

  document.addEventListener("contextmenu", (event) => {
    const tab = fw.tabAround(event.target, "generate_box");
    if (!tab) return;
    event.preventDefault();
    tab.toggleForever();
  });
})();
