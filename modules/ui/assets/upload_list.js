// Image files that are sent ahead of a form; and a place for several of them: a field to drop them on or choose them with, their list, and a button that empties it.
(() => {
  const fw = window.featherweight;

  // The three elements. `name` is what readers hear of the field; `add` is called with files, `clear` to empty the list.
  fw.uploadList = ({ name, listClass, clearId = "", add, clear }) => {
    const input = fw.element("input", { type: "file", accept: "image/*,.avif,.tif,.tiff", multiple: true });
    input.setAttribute("aria-label", name);
    const drop = fw.element("label", { className: "fw-canvas-drop" }, fw.t`Drop images here, or click to choose several`, input);
    const list = fw.element("ul", { className: listClass });
    const button = fw.element("button", { type: "button", textContent: fw.t`Remove all`, className: "fw-batch-clear" });
    if (clearId) button.id = clearId;
    input.addEventListener("change", () => {
      add([...input.files]);
      input.value = "";
    });
    drop.addEventListener("dragover", (event) => event.preventDefault());
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      add([...event.dataTransfer.files]);
    });
    button.addEventListener("click", clear);
    return [drop, list, button];
  };

  // Send a file ahead: {key, width, height, infotext}; throws a sentence for one that is no image.
  fw.upload = async (file) => {
    const name = encodeURIComponent(file.name || fw.t`The image`);
    const headers = { "Content-Type": "application/octet-stream" };
    const reply = await fetch(`internal/upload?name=${name}`, { method: "POST", headers, body: file }).catch(() => null);
    if (!reply) throw new Error(fw.t`The image could not be sent: the server does not answer.`);
    const data = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Error(data.errors || fw.t`The server answered ${reply.status}.`);
    return data;
  };

  // The entries that a list had before a reload; none where they cannot be read.
  fw.keptList = (key) => {
    try {
      return JSON.parse(fw.kept(key) || "[]");
    } catch {
      return [];
    }
  };
})();
