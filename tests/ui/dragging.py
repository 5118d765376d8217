"""Dragging without a pointer: what the browser tells an element that is dragged, and the one it is dropped on.

Not `drag_and_drop`: the browser's own drag is begun by a message that a busy machine handles too late for Playwright
to take it over, and then the page gets no click any more.
"""

from playwright import sync_api

PATIENCE_MS = 45_000
DRAG = """([source, target, [x, y]]) => {
  const data = new DataTransfer();
  const box = target.getBoundingClientRect();
  const told = (element, type) => !element.dispatchEvent(new DragEvent(type, {
    bubbles: true, cancelable: true, composed: true, dataTransfer: data, clientX: box.x + x, clientY: box.y + y,
  }));
  if (!source.isConnected || !target.isConnected) return null;
  if (!source.draggable) return "it cannot be dragged";
  if (told(source, "dragstart")) return "the drag is refused";
  told(target, "dragenter");
  const isTaken = told(target, "dragover");
  if (isTaken) told(target, "drop");
  told(source, "dragend");
  return isTaken ? "" : "nothing can be dropped there";
}"""


def drag(source: sync_api.Locator, target: sync_api.Locator, position: tuple[float, float] = (5, 5)) -> None:
    """Drag `source` to a place of `target`, in pixels from its corner; at once, before a list is redrawn."""
    refused = None
    while refused is None:  # the list was redrawn between the two look-ups
        elements = [one.element_handle(timeout=PATIENCE_MS) for one in (source, target)]
        refused = source.page.evaluate(DRAG, [*elements, list(position)])
    assert refused == "", refused
