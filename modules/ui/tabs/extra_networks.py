"""Sub-tabs of a form: Generation, and one for each kind of model cards. The page's script fills the cards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape

import gradio as gr

from modules.model_cards.cards import CardPage
from modules.services import Services
from modules.settings.values import Settings

ORDERS = ("Path", "Name", "Date Created", "Date Modified")
PANEL = """
<section class="fw-networks" data-tab="{tab}" data-page="{page}" aria-label="{title}">
  <div class="fw-networks-bar">
    <input type="search" id="{tab}_{page}_extra_search" placeholder="Search" aria-label="Search {title}"
           autocomplete="off" spellcheck="false">
    <label class="fw-networks-sort">Sort by
      <select id="{tab}_{page}_extra_sort">{orders}</select></label>
    <button type="button" id="{tab}_{page}_extra_sort_dir" data-do="direction" aria-label="Ascending">↑</button>
    <button type="button" id="{tab}_{page}_extra_tree_view" data-do="folders" aria-pressed="false">Folders</button>
    <button type="button" id="{tab}_{page}_extra_refresh" data-do="refresh" aria-label="Look for new files">↻</button>
    <span class="fw-networks-count" aria-live="polite"></span>
  </div>
  <p class="fw-networks-status" role="status"></p>
  <div class="fw-networks-body">
    <nav id="{tab}_{page}_tree" class="fw-networks-folders" aria-label="Folders of {title}" hidden></nav>
    <div id="{tab}_{page}_cards" class="fw-cards extra-network-cards" role="group" aria-label="{title}"></div>
  </div>
</section>
"""


@contextmanager
def extra_networks_tabs(services: Services, tab: str = "txt2img") -> Iterator[None]:
    """Open the sub-tabs; what is built inside of the `with` becomes the tab Generation."""
    with gr.Tabs(elem_id=f"{tab}_extra_tabs", overflow_behavior="wrap"):
        with gr.Tab("Generation", id=f"{tab}_generation", elem_id=f"{tab}_generation"):
            yield
        for page in ordered_pages(services.cards.pages.values(), services.settings.current):
            elem_id = f"{tab}_{page.id}"
            with gr.Tab(page.title, id=elem_id, elem_id=elem_id, elem_classes=["extra-page"]):
                gr.HTML(panel_html(tab, page))


def ordered_pages(pages: Iterable[CardPage], settings: Settings) -> list[CardPage]:
    """The pages: those that the setting names first, by title or id, then the others."""
    wanted = [name.strip().lower() for name in settings.extra_networks.ui_extra_networks_tab_reorder.split(",")]
    rank = {name: number for number, name in reversed(list(enumerate(wanted)))}
    last = len(wanted)
    return sorted(pages, key=lambda page: min(rank.get(name, last) for name in (page.id, page.title.lower())))


def panel_html(tab: str, page: CardPage) -> str:
    """An empty panel of cards."""
    orders = "".join(f'<option value="{escape(order)}">{escape(order)}</option>' for order in ORDERS)
    return PANEL.format(tab=tab, page=page.id, title=escape(page.title), orders=orders)
