// Above the tabs: what this server says about itself.
(() => {
  const fw = window.featherweight;

  fw.showNotices = async () => {
    const place = document.querySelector("#fw_notices");
    if (!place) return;
    const notices = await fw.get("internal/notices").catch(() => []); // the header says when the server does not answer
    place.replaceChildren(...[...notices, ...fw.pageFaults, ...(fw.languageFaults || [])].map(box));
  };

  function box(text) {
    return fw.element("div", { className: "fw-message fw-note", textContent: text });
  }
})();
