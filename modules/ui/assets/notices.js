// Above the tabs: what an earlier server left unfinished, to repeat or to dismiss, and what this one says about itself.
(() => {
  const fw = window.featherweight;

  fw.showNotices = async () => {
    const place = document.querySelector("#fw_notices");
    if (!place) return;
    const ask = (path) => fw.get(path).catch(() => []); // the header says when the server does not answer
    const [notices, unfinished] = await Promise.all(["internal/notices", "internal/unfinished"].map(ask));
    place.replaceChildren(...notices.map((text) => box(text)), ...unfinished.map(entry));
  };

  function box(text, ...buttons) {
    return fw.element("div", { className: "fw-message fw-note" }, fw.element("span", { textContent: text }), ...buttons);
  }

  function entry(work) {
    const act = (name, then) => async () => {
      try {
        then(await fw.post(`internal/unfinished/${encodeURIComponent(work.task_id)}/${name}`, {}));
      } catch (error) {
        fw.shownTab().message(error.message, true);
      }
      fw.showNotices();
    };
    const repeated = (reply) => fw.tab(work.kind)?.follow(reply.task_id);
    return box(
      fw.unfinishedLine(work),
      button("Repeat", act("repeat", repeated)),
      button("Dismiss", act("dismiss", () => {})),
    );
  }

  function button(text, run) {
    const made = fw.element("button", { type: "button", textContent: text });
    made.addEventListener("click", run);
    return made;
  }

  // "Unfinished: a cat (2 images are kept). The server ended before this was finished."
  fw.unfinishedLine = ({ title, images, reason }) => {
    const kept = images ? ` (${images} ${images === 1 ? "image is" : "images are"} kept)` : "";
    return `Unfinished: ${title}${kept}. ${reason || ""}`.trim();
  };
})();
