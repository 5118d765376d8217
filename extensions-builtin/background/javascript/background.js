// Remove background on the canvas: the foreground of an image layer takes the place of its picture.
(() => {
  const fw = window.featherweight;
  const OPERATIONS = { "Remove background": { enable: true } };

  async function foreground(blob) {
    const [, image] = (await fw.dataUri(blob)).split(",");
    const reply = await fw.post("sdapi/v1/extra-single-image", { image, operations: OPERATIONS });
    return new Blob([Uint8Array.from(atob(reply.image), (char) => char.charCodeAt(0))]);
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
