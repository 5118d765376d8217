// Remove background on the canvas: the foreground of an image layer takes the place of its picture.
(() => {
  const fw = window.featherweight;
  const OPERATIONS = { "Remove background": { enable: true } };

  const base64 = (blob) =>
    new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.split(",")[1]);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(blob);
    });

  async function foreground(blob) {
    const body = JSON.stringify({ image: await base64(blob), operations: OPERATIONS });
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch("sdapi/v1/extra-single-image", { method: "POST", headers, body });
    const data = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Error(data.errors || fw.t`The server answered ${reply.status}.`);
    return new Blob([Uint8Array.from(atob(data.image), (char) => char.charCodeAt(0))]);
  }

  async function cut(board, layer) {
    board.say(fw.t`The background is being removed.`);
    try {
      const blob = await foreground(board.pictures.known.get(layer.image).blob);
      await board.adding(async () => {
        const { id } = await board.keepPicture(blob);
        board.change(fw.layers.withLayer(board.doc, layer.id, { image: id }));
      });
      board.say("");
    } catch (error) {
      board.say(fw.t`The background was not removed: ${error.message}`);
    }
  }

  fw.layers?.actions.push({
    text: fw.t`Remove background`,
    title: fw.t`Keep the foreground of this image (can be undone)`,
    fits: (layer) => Boolean(layer.image),
    run: cut,
  });
})();
