// Ctrl+Enter generates (or begins anew), Alt+Enter skips, Esc interrupts; right-click on Generate generates forever.
(() => {
  const fw = window.featherweight;
  const press = (id) => document.querySelector(`#${id}`)?.click();

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (fw.isRunning()) fw.restart();
      else press("txt2img_generate");
    } else if (event.key === "Enter" && event.altKey) {
      event.preventDefault();
      press("txt2img_skip");
    } else if (event.key === "Escape" && fw.isRunning() && !fw.isLightboxOpen()) {
      fw.endForever();
      press("txt2img_interrupt");
    }
  }, true);

  document.addEventListener("contextmenu", (event) => {
    if (event.target.closest && event.target.closest("#txt2img_generate_box")) {
      event.preventDefault();
      fw.toggleForever();
    }
  });
})();
