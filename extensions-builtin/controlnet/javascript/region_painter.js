// The painter of a unit's effective region: a dialog with a brush over the unit's image, in the size of what is made.
// `featherweight.paintRegion({ size: [width, height], image, fit, mask })` resolves to a data URL, white where the unit
// counts, or to null when it is closed.
(() => {
  const fw = window.featherweight;
  const { element } = fw;

  const loaded = async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  };

  const sheet = ([width, height]) => element("canvas", { width, height });

  // A mask as strokes to go on with: what is bright is painted, the rest is clear.
  const drawMask = async (canvas, mask) => {
    const context = canvas.getContext("2d");
    context.drawImage(await loaded(mask), 0, 0, canvas.width, canvas.height);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    for (let place = 0; place < pixels.data.length; place += 4) {
      pixels.data[place + 3] = pixels.data[place];
      pixels.data.fill(255, place, place + 3);
    }
    context.putImageData(pixels, 0, 0);
  };

  const asMask = (canvas) => {
    const made = sheet([canvas.width, canvas.height]);
    const context = made.getContext("2d");
    context.fillRect(0, 0, made.width, made.height);
    context.drawImage(canvas, 0, 0);
    return made.toDataURL("image/png");
  };

  const painting = (canvas, brush, erase) => {
    const context = canvas.getContext("2d");
    context.lineCap = context.lineJoin = "round";
    context.strokeStyle = "white";
    let last = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
    };
    const strokeTo = (event) => {
      const now = at(event);
      context.globalCompositeOperation = erase.checked ? "destination-out" : "source-over";
      context.lineWidth = Number(brush.value);
      context.beginPath();
      context.moveTo(...last);
      context.lineTo(now[0] + 0.01, now[1]); // a line of no length would leave no dot
      context.stroke();
      last = now;
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = at(event);
      strokeTo(event);
    });
    canvas.addEventListener("pointermove", (event) => last && strokeTo(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (last = null));
  };

  fw.paintRegion = async ({ size, image, fit, mask }) => {
    const canvas = sheet(size);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", fw.t`Painted mask`);
    if (mask) await drawMask(canvas, mask);
    const side = Math.min(...size);
    const brush = element("input", { type: "range", min: 1, max: Math.ceil(side / 2), value: Math.ceil(side / 8) });
    const erase = element("input", { type: "checkbox" });
    painting(canvas, brush, erase);
    const below = element("div", { className: "controlnet-region-sheet" });
    below.style.aspectRatio = size.join("/");
    below.style.maxWidth = `min(100%,${(60 * size[0]) / size[1]}vh)`;
    if (image) {
      const shown = element("img", { src: image, alt: "" });
      shown.style.objectFit = fit;
      below.append(shown);
    }
    below.append(canvas);
    const dialog = element("dialog", { className: "controlnet-pose", attributes: { "aria-labelledby": "controlnet_region_title" } });
    const button = (text, act) => {
      const made = element("button", { type: "button", textContent: text, className: "controlnet-button" });
      made.addEventListener("click", act);
      return made;
    };
    return new Promise((done) => {
      let result = null;
      const use = () => {
        result = asMask(canvas);
        dialog.close();
      };
      const accept = button(fw.t`Use this mask`, use);
      accept.classList.add("controlnet-primary");
      dialog.append(
        element("h2", { id: "controlnet_region_title", textContent: fw.t`Where the unit counts` }),
        element("p", { textContent: fw.t`Paint the part of the image that this unit steers.` }),
        below,
        element(
          "div",
          { className: "controlnet-row" },
          element("label", { className: "controlnet-field" }, element("span", { textContent: fw.t`Brush size` }), brush),
          element("label", { className: "controlnet-field" }, element("span", { textContent: fw.t`Erase` }), erase),
          button(fw.t`Clear`, () => canvas.getContext("2d").clearRect(0, 0, ...size)),
        ),
        element("footer", { className: "controlnet-row" }, button(fw.t`Cancel`, () => dialog.close()), accept),
      );
      dialog.addEventListener("close", () => {
        dialog.remove();
        done(result);
      });
      document.body.append(dialog);
      dialog.showModal();
    });
  };
})();
