// Gradio's fields for files say what the fields of this page say, and take an image that is pasted.
(() => {
  const fw = window.featherweight;
  const TEXTS = "[data-testid=upload-text]";
  const WHAT = {
    image: fw.t`Drop an image here, paste one, or click to choose`,
    images: fw.t`Drop images here, or click to choose several`,
    file: fw.t`Drop a file here, or click to choose`,
  };

  function whatOf(input) {
    if (!input.accept.includes("image")) return "file";
    return input.multiple ? "images" : "image";
  }

  fw.dressUploads = () => {
    for (const text of document.querySelectorAll(TEXTS)) {
      const button = text.closest("button");
      const input = button?.querySelector("input[type=file]");
      if (!input) continue;
      const said = fw.text(WHAT[whatOf(input)]);
      if (text.dataset.said === said) continue;
      text.dataset.said = said; // shown in place of what stands there (work.css)
      text.translate = false;
      button.setAttribute("aria-label", said);
    }
  };

  // The one field for an image that is in sight; of several, the one that has the focus.
  function fieldInSight() {
    const fields = [...document.querySelectorAll(`button:has(> ${TEXTS}) > input[type=file]`)];
    const shown = fields.filter((input) => whatOf(input) === "image" && input.parentElement.offsetParent);
    return shown.length === 1 ? shown[0] : shown.find((input) => input.parentElement === document.activeElement);
  }

  document.addEventListener("paste", (event) => {
    const image = [...(event.clipboardData?.files || [])].find((file) => file.type.startsWith("image/"));
    const field = image && !event.defaultPrevented && fieldInSight();
    if (!field) return;
    event.preventDefault();
    const files = new DataTransfer();
    files.items.add(image);
    field.files = files.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  });
})();
