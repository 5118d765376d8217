// Runs once the page stands: theme, scales, settings search, the job of an earlier visit.
(() => {
  const fw = window.featherweight;
  const THEME = "featherweight.theme";
  let knownSize = null;

  function applyTheme(theme) {
    document.body.classList.toggle("dark", theme === "dark");
    document.documentElement.style.colorScheme = theme;
  }

  function startTheme() {
    const asked = new URLSearchParams(location.search).get("__theme") || window.featherweightTheme;
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    applyTheme(asked || localStorage.getItem(THEME) || preferred);
    document.addEventListener("click", (event) => {
      if (!event.target.closest || !event.target.closest("#fw_theme")) return;
      const theme = document.body.classList.contains("dark") ? "light" : "dark";
      localStorage.setItem(THEME, theme);
      applyTheme(theme);
    });
  }

  async function weigh() {
    const place = document.querySelector("#fw_scales");
    if (!place) return;
    try {
      const engine = await fw.get("internal/engine");
      fw.settings = engine.settings;
      follow();
      place.textContent = engine.state === "ready" ? engine.line : engine.message;
      place.className = `fw-${engine.state}`;
      place.title = engine.switch_seconds ? `ready after ${engine.switch_seconds} s` : "";
      place.dataset.hashing = engine.hashing;
      // A page that is there before the model shows the size that the server guessed.
      if (!engine.size && knownSize === null) knownSize = shownSize();
      if (engine.size && knownSize && engine.size !== knownSize) {
        for (const id of ["txt2img_width", "txt2img_height"]) {
          if (Number(fw.field(id)?.value) === knownSize) fw.setField(id, String(engine.size));
        }
      }
      if (engine.size) knownSize = engine.size;
    } catch {
      place.textContent = "The server does not answer.";
      place.className = "fw-failed";
    }
  }

  function shownSize() {
    const [width, height] = ["txt2img_width", "txt2img_height"].map((id) => Number(fw.field(id)?.value));
    return width && width === height ? width : null;
  }

  // Settings that change how the page looks.
  function follow() {
    const stage = document.querySelector("#txt2img_gallery .fw-stage");
    if (stage) stage.style.height = fw.settings.gallery_height;
    document.body.style.setProperty("--fw-viewer-opacity", fw.settings.sd_webui_modal_lightbox_icon_opacity);
    document.body.classList.toggle("fw-no-counters", fw.settings.disable_token_counters);
    document.body.classList.toggle("fw-no-progressbar", !fw.settings.show_progressbar);
  }

  document.addEventListener("input", (event) => {
    if (event.target.id !== "settings_search") return;
    const wanted = event.target.value.trim().toLowerCase();
    for (const section of document.querySelectorAll(".fw-section")) {
      let shown = 0;
      const hit = section.querySelector("h2").textContent.toLowerCase().includes(wanted);
      for (const setting of section.querySelectorAll(".fw-setting")) {
        const matches = hit || setting.textContent.toLowerCase().includes(wanted) || setting.id.includes(wanted);
        setting.style.display = matches ? "" : "none";
        shown += matches ? 1 : 0;
      }
      section.style.display = shown ? "" : "none";
    }
  });

  function ready() {
    if (!document.querySelector("#txt2img_generate") || !document.querySelector("#txt2img_gallery")) {
      setTimeout(ready, 100);
      return;
    }
    startTheme();
    weigh();
    setInterval(weigh, 2000);
    setInterval(fw.countTokens, 500);
    fw.resume();
  }

  document.addEventListener("DOMContentLoaded", ready);
  if (document.readyState !== "loading") ready();
})();
