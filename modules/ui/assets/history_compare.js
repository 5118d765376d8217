// Two images of the history over each other with a slider, how far they are apart, and what differs in how they were made.
(() => {
  const fw = window.featherweight;
  const { ROUTE, address, button } = fw.history;

  // "equal", or how far apart.
  fw.history.differenceLine = ({ psnr_db, largest_level }) =>
    psnr_db === null ? "equal" : fw.t`PSNR ${psnr_db.toFixed(1)} dB, at most ${largest_level} of 255`;

  fw.history.compare = async (first, second) => {
    const dialog = fw.element("dialog", { id: "fw_history_compare", attributes: { "aria-labelledby": "fw_compare_title" } });
    const status = fw.element("p", { className: "fw-history-status", attributes: { role: "status" } });
    const stage = fw.element("div", { className: "fw-compare-stage" });
    const isSameSize = first.width === second.width && first.height === second.height;
    const views = [["slider", fw.t`Slider`, fw.t`Both on top of each other`], ["beside", fw.t`Side by side`, fw.t`Next to each other`]];
    if (isSameSize) views.push(["difference", fw.t`Difference`, fw.t`Where they differ, eight times amplified`]);
    const buttons = views.map(([name, text, title]) => {
      const made = button(text, title, () => show(name));
      made.dataset.view = name;
      return made;
    });
    const show = (name) => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.view === name));
      stage.replaceChildren(...drawn[name]());
    };
    const picture = (image, side) => {
      const made = fw.element("img", { src: address(image, "image"), alt: side, draggable: false });
      made.addEventListener("error", () => tell(fw.t`${image.name}: the file is missing`, true));
      return made;
    };
    const drawn = {
      slider: () => [sliding(first, second, picture)],
      beside: () => [picture(first, "left"), picture(second, "right")].map((one) => fw.element("figure", {}, one)),
      difference: () => [fw.element("figure", {}, fw.element("img", { src: `${ROUTE}/difference?first=${first.id}&second=${second.id}`, alt: fw.t`difference, 8 times` }))],
    };
    function tell(text, isBad = false) {
      status.textContent = text;
      status.classList.toggle("fw-bad", isBad);
    }
    const table = fw.element("div", { className: "fw-compare-values" });
    dialog.append(
      fw.element("div", { className: "fw-history-head" },
        fw.element("h2", { id: "fw_compare_title", textContent: fw.t`Compare two images` }),
        button(fw.t`Swap`, fw.t`Left becomes right`, () => {
          dialog.close();
          fw.history.compare(second, first);
        }),
        button(fw.t`Close`, fw.t`Back to the images`, () => dialog.close())),
      fw.element("div", { className: "fw-compare-view" },
        fw.element("div", {}, fw.element("div", { className: "fw-tools" }, ...buttons), stage, status),
        table),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    show("slider");
    try {
      const differing = await fw.get(`${ROUTE}/differing?first=${first.id}&second=${second.id}`);
      table.append(...valuesTable(first, second, differing));
      if (!isSameSize) return tell(fw.t`The images differ in size: ${first.width} × ${first.height} and ${second.width} × ${second.height}.`);
      tell(fw.history.differenceLine(await fw.get(`${ROUTE}/compare?first=${first.id}&second=${second.id}`)));
    } catch (error) {
      tell(error.message, true);
    }
  };

  // The second image lies over the first, cut off at the line; an unseen slider over both takes pointer and keys.
  function sliding(first, second, picture) {
    const over = picture(second, "right");
    over.className = "fw-compare-over";
    const slider = fw.element("input", { type: "range", min: 0, max: 100, step: 0.5, value: 50 });
    slider.setAttribute("aria-label", fw.t`Edge of the left image, in percent`);
    const box = fw.element("div", { className: "fw-compare-slider" }, picture(first, "left"), over, slider, fw.element("span", { className: "fw-compare-line" }));
    const draw = () => box.style.setProperty("--at", `${slider.value}%`);
    slider.addEventListener("input", draw);
    draw();
    return box;
  }

  function valuesTable(first, second, differing) {
    if (!differing.length) return [fw.element("p", { textContent: fw.t`Their prompts, parameters and settings are the same.` })];
    const head = fw.element("tr", {}, fw.element("th", { textContent: fw.t`What differs` }),
      ...[first, second].map((image, side) => fw.element("th", {}, fw.element("span", { textContent: side ? fw.t`Right` : fw.t`Left` }), fw.element("small", { textContent: image.name, translate: false }))));
    const rows = differing.map(({ key, first: one, second: other }) => {
      const named = fw.element("th", { textContent: key, translate: false });
      named.scope = "row";
      const texts = [[one, other], [other, one]].map(([own, against]) => {
        const cell = fw.element("td", { translate: false });
        cell.append(...marked(own ?? "–", against ?? ""));
        return cell;
      });
      return fw.element("tr", {}, named, ...texts);
    });
    return [fw.element("table", {}, fw.element("thead", {}, head), fw.element("tbody", {}, ...rows))];
  }

  // A text with the words marked that the other one does not have; short ones differ as a whole.
  function marked(text, other) {
    if (!text.includes(" ")) return [text];
    const words = new Set(other.split(/[\s,]+/));
    return text.split(/([\s,]+)/).map((part, place) => (place % 2 || !part || words.has(part) ? part : fw.element("mark", { textContent: part })));
  }
})();
