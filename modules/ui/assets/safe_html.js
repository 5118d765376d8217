// Text with plain formatting as nodes: known elements stay, everything else becomes its text. No attribute survives but
// the address of a link, so that nothing can run and nothing is loaded.
(() => {
  const fw = window.featherweight;
  const KEPT = new Set("A B BR CODE DIV EM HR I LI OL P PRE S SMALL SPAN STRONG SUB SUP U UL".split(" "));
  const DROPPED = new Set("SCRIPT STYLE TEMPLATE IFRAME OBJECT SVG MATH HEAD TITLE".split(" "));

  fw.safeHtml = (text) => copies(new DOMParser().parseFromString(text, "text/html").body);

  function copies(parent) {
    return [...parent.childNodes].flatMap((node) => {
      if (node.nodeType === Node.TEXT_NODE) return [document.createTextNode(node.textContent)];
      if (node.nodeType !== Node.ELEMENT_NODE || DROPPED.has(node.tagName.toUpperCase())) return [];
      if (!KEPT.has(node.tagName)) return copies(node);
      const made = document.createElement(node.tagName);
      if (node.tagName === "A" && /^https?:\/\//i.test(node.getAttribute("href") || "")) {
        Object.assign(made, { href: node.getAttribute("href"), target: "_blank", rel: "noopener noreferrer" });
      }
      made.append(...copies(node));
      return [made];
    });
  }
})();
