// What a job of the canvas is sent with: the frame's pixels, its masks, the regions for Regional Prompter and the control
// images for ControlNet, in the form in which callers of the API give them.
(() => {
  const fw = window.featherweight;
  const OF_FRAME = "mask of the whole image"; // an option of Regional Prompter: with Only masked, regions are cut as the image is
  const REGIONS = "Regional Prompter";
  const CONTROL = "ControlNet";
  const BASE = " ADDBASE "; // before it stands the prompt for all of the image
  const BASE_SHARE = "0.2"; // of the form's prompt in each region
  const OPAQUE = 128;

  // What masks cover, white on black; null where nothing is painted inside of the frame.
  function maskOf(board) {
    const { doc, pictures } = board;
    const masks = doc.layers.filter((layer) => layer.kind === "mask" && layer.visible);
    if (!masks.length) return null;
    const canvas = pictures.flat(masks, doc.frame, 1);
    const context = canvas.getContext("2d");
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    const { data } = pixels;
    let isPainted = false;
    for (let at = 0; at < data.length; at += 4) {
      const alpha = data[at + 3];
      isPainted ||= alpha >= OPAQUE;
      data[at] = data[at + 1] = data[at + 2] = alpha;
      data[at + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
    return isPainted ? canvas : null;
  }

  // The picture of the regions: each in its color with hard edges, the upper one over the lower; black where none is.
  function regionMap(board, regions) {
    const { frame } = board.doc;
    const canvas = fw.layers.canvasOf(frame.width, frame.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const made = context.createImageData(canvas.width, canvas.height);
    for (let at = 3; at < made.data.length; at += 4) made.data[at] = 255;
    regions.forEach((layer, number) => {
      const pixels = board.pictures.flat([layer], frame, 1).getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const color = fw.layers.regionColor(number);
      for (let at = 0; at < pixels.length; at += 4) {
        if (pixels[at + 3] >= OPAQUE) made.data.set(color, at);
      }
    });
    context.putImageData(made, 0, 0);
    return canvas;
  }

  const base64 = (canvas) => canvas.toDataURL("image/png").split(",")[1];

  // The twenty arguments of Regional Prompter's extension.
  function regionArguments(map, mode) {
    const [columns, prompt, none] = ["Columns", fw.t`Prompt`, "0"];
    return [true, false, "Mask", columns, "Mask", prompt, "1,1", BASE_SHARE, true, false, false, mode, [OF_FRAME], none, none, none, base64(map), none, none, false];
  }

  function withRegions(board, tab, sent) {
    const regions = fw.layers.regionsOf(board.doc);
    if (!regions.length) return;
    const mode = tab.find("rp_generation_mode", "input:checked")?.value || tab.field("rp_generation_mode")?.value;
    sent.prompt_end = BASE + regions.map(({ prompt }) => prompt.trim()).join(" BREAK ");
    sent.scripts[REGIONS] = regionArguments(regionMap(board, regions), mode === "Latent" ? mode : "Attention");
  }

  // The form's units, with the layers' images in theirs.
  function withControls(board, tab, sent) {
    const layers = board.doc.layers.filter((layer) => layer.kind === "control" && layer.visible && fw.layers.ownBox(layer));
    if (!layers.length) return;
    const units = JSON.parse(tab.field("controlnet_units")?.value || "[]");
    for (const layer of layers) {
      while (units.length <= layer.unit) units.push({ enabled: false });
      const own = { enabled: true, image: base64(opaque(board.pictures.flat([layer], board.doc.frame, 1))), weight: layer.weight };
      if (layer.module) own.module = layer.module;
      if (layer.model) own.model = layer.model;
      units[layer.unit] = { ...units[layer.unit], ...own };
    }
    sent.scripts[CONTROL] = units;
  }

  // On black: control models know no transparency.
  function opaque(canvas) {
    const made = fw.layers.canvasOf(canvas.width, canvas.height);
    const context = made.getContext("2d");
    context.fillStyle = "#000";
    context.fillRect(0, 0, made.width, made.height);
    context.drawImage(canvas, 0, 0);
    return made;
  }

  // {image, mask, references, prompt_end, scripts} for `modules.ui.form.start_form.Pictures`. Throws a sentence.
  fw.layers.sent = async (board, tab) => {
    const upload = async (canvas) => (await fw.upload(await fw.layers.blobOf(canvas))).key;
    const mask = maskOf(board);
    const sent = { image: await upload(board.pictures.seen(board.doc, board.doc.frame)), scripts: {} };
    if (mask) sent.mask = await upload(mask);
    const references = tab.referenceKeys();
    if (references.length) sent.references = references;
    withRegions(board, tab, sent);
    withControls(board, tab, sent);
    return sent;
  };

  Object.assign(fw.layers, { maskOf, regionMap });
})();
