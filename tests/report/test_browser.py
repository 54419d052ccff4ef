from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import WIDTHS, browser, opened, overflowing
from tests.report.test_pictures import write_kept
from tradi.report import html
from tradi.report.cells import Cell, Head, Table

TABLE = "#mnist table.sortable"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def tab(chromium: Any, committed_page: Path) -> Iterator[Any]:
    with opened(chromium, committed_page) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(WIDTHS[0], "light"), (WIDTHS[1], "dark")])
def test_nothing_is_wider_than_the_window(chromium: Any, committed_page: Path, width: int, scheme: str) -> None:
    with opened(chromium, committed_page, width, scheme) as tab:
        assert overflowing(tab) <= 0
        tab.evaluate("document.querySelectorAll('[role=tabpanel]').forEach(panel => { panel.hidden = false; })")
        assert overflowing(tab) <= 0


def test_the_first_column_of_a_wide_table_stays(chromium: Any, committed_page: Path) -> None:
    with opened(chromium, committed_page, 390) as tab:
        frame = tab.locator("#mnist .scroll").first
        name, number = frame.locator("tbody th").first, frame.locator("tbody td").first
        before = name.bounding_box()["x"], number.bounding_box()["x"]
        frame.evaluate("frame => { frame.scrollLeft = 150; }")
        after = name.bounding_box()["x"], number.bounding_box()["x"]
        assert after[0] == pytest.approx(before[0], abs=2)
        assert after[1] == pytest.approx(before[1] - 150, abs=2)


def column(tab: Any, place: int) -> list[float]:
    cells = tab.locator(f"{TABLE} tbody td:nth-child({place + 1})").all()
    return [float(cell.get_attribute("data-v")) for cell in cells if cell.get_attribute("data-v")]


def test_a_table_is_sorted_by_mouse_and_by_keyboard(tab: Any) -> None:
    heads = tab.locator(f"{TABLE} thead th")
    (place,) = (n for n, text in enumerate(heads.all_text_contents()) if text.startswith("NLL"))
    (other,) = (n for n, text in enumerate(heads.all_text_contents()) if text.startswith("accuracy"))
    head = heads.nth(place)
    before = column(tab, place)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending", "the lowest NLL is the best"
    assert column(tab, place) == sorted(before) != before
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(tab, place) == sorted(before, reverse=True)
    heads.nth(other).locator("button").press("Space")
    assert heads.nth(other).get_attribute("aria-sort") == "descending", "the highest accuracy is the best"
    assert head.get_attribute("aria-sort") is None
    last = tab.locator("#mnist-ood table.sortable").first
    empty = last.locator("thead th", has_text="mutual information")
    empty.locator("button").click()
    order = last.locator("tbody tr td:nth-child(" + str(empty.evaluate("head => head.cellIndex") + 1) + ")")
    filled = [cell.get_attribute("data-v") is not None for cell in order.all()]
    assert filled == sorted(filled, reverse=True), "what has no number comes last"


def test_numbers_of_a_column_stand_with_their_points_below_each_other(chromium: Any, tmp_path: Path) -> None:
    script = """cells => cells.map(cell => {
        const range = document.createRange(), text = cell.firstChild, point = text.data.indexOf('.');
        range.setStart(text, point); range.setEnd(text, point + 1);
        return range.getBoundingClientRect().left; })"""
    cells = [Cell(9.55, 0.05, best=True), Cell(98.5, 27.1), Cell(-3.25), Cell(0.5, 0.1, runs="2 of 3"), Cell()]
    cells.append(Cell(0.00035, 0.00001, 5))
    made = Table("t", [Head(""), Head("NLL", higher=False)], [(str(n), [cell]) for n, cell in enumerate(cells)])
    path = tmp_path / "page.html"
    path.write_text(html.page("t", [], f"<section>{html.table(made)}</section>"))
    with opened(chromium, path) as tab:
        lefts = tab.eval_on_selector_all("tbody td[data-v]", script)
        assert len(lefts) == 5
        assert max(lefts) - min(lefts) < 0.6


def test_methods_are_switched_on_and_off_in_their_section(tab: Any) -> None:
    key = tab.locator("#mnist .key")
    switch = key.locator("button[data-m]", has_text=re.compile("^SWAG$"))
    index = switch.get_attribute("data-m")
    lines = tab.locator(f"#mnist .s[data-m='{index}']").first
    elsewhere = tab.locator(f"#cifar10 .s[data-m='{index}']").first
    assert switch.get_attribute("aria-pressed") == "true"
    assert lines.is_visible()
    switch.click()
    assert switch.get_attribute("aria-pressed") == "false"
    assert not lines.is_visible()
    assert elsewhere.is_visible()
    switch.press("Enter")
    assert lines.is_visible()
    hidden = key.locator("button[data-m][aria-pressed=false]").count()
    assert hidden > 0, "not all methods are shown at first"
    key.get_by_text("all", exact=True).click()
    assert key.locator("button[data-m][aria-pressed=false]").count() == 0
    key.get_by_text("usual", exact=True).click()
    assert key.locator("button[data-m][aria-pressed=false]").count() == hidden


def test_what_is_not_usual_is_folded_away_until_it_is_asked_for(tab: Any) -> None:
    key = tab.locator("#mnist .key")
    rare, more = key.locator("button.rare"), key.locator("[data-more]")
    count = rare.count()
    assert count > 0
    assert more.text_content() == f"{count} more"
    assert not any(one.is_visible() for one in rare.all())
    more.press("Enter")
    assert more.get_attribute("aria-expanded") == "true"
    assert all(one.is_visible() for one in rare.all())
    more.click()
    assert more.text_content() == f"{count} more"
    assert not rare.first.is_visible()
    key.get_by_text("all", exact=True).click()
    assert rare.first.is_visible(), "what is drawn can be turned off"


def test_variants_are_chosen_by_mouse_and_arrow_keys(tab: Any) -> None:
    tabs, panels = tab.locator("#mnist-ood [role=tab]"), tab.locator("#mnist-ood [role=tabpanel]")
    seen = lambda: [panel.is_visible() for panel in panels.all()]  # noqa: E731
    assert seen() == [True, False, False]
    tabs.nth(1).click()
    assert seen() == [False, True, False]
    tabs.nth(1).press("ArrowRight")
    assert seen() == [False, False, True]
    assert tabs.nth(2).evaluate("one => one === document.activeElement")
    tabs.nth(2).press("ArrowRight")
    assert seen() == [True, False, False]
    assert [one.get_attribute("aria-selected") for one in tabs.all()] == ["true", "false", "false"]


def test_the_contents_lead_to_every_section_and_are_folded_on_a_phone(chromium: Any, committed_page: Path) -> None:
    with opened(chromium, committed_page, 390) as tab:
        link = tab.locator("nav a[href='#camvid-ood']")
        assert not link.is_visible()
        tab.locator("nav summary").click()
        link.click()
        tab.wait_for_function("Math.abs(document.getElementById('camvid-ood').getBoundingClientRect().top) < 120")
    with opened(chromium, committed_page) as tab:
        assert tab.locator("nav a").first.is_visible()


def test_light_and_dark_follow_the_system_and_the_button(chromium: Any, committed_page: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(chromium, committed_page, scheme="dark") as tab:
        dark = tab.evaluate(background)
        tab.locator("#theme").click()
        light = tab.evaluate(background)
        assert dark != light == "rgb(255, 255, 255)"
        tab.locator("#theme").press("Enter")
        assert tab.evaluate(background) == dark
    with opened(chromium, committed_page, scheme="light") as tab:
        assert tab.evaluate(background) == light


def test_the_slider_moves_between_two_methods(chromium: Any, tmp_path: Path) -> None:
    with opened(chromium, write_kept(tmp_path), 390) as tab:
        part = tab.locator(".comparison").first
        slider, layers = part.locator("input[type=range]").first, part.locator(".layers").first
        over, under = layers.locator("img.over"), layers.locator("img.under")
        assert over.get_attribute("data-name") == "Single network"
        assert under.get_attribute("data-name") == "TRADI"
        assert over.evaluate("image => getComputedStyle(image).clipPath") == "inset(0px 50% 0px 0px)"
        slider.press("ArrowRight")
        assert over.evaluate("image => getComputedStyle(image).clipPath") == "inset(0px 49% 0px 0px)"
        box = layers.bounding_box()
        slider.click(position={"x": 0.9 * box["width"], "y": box["height"] / 2})
        assert float(slider.input_value()) > 80
        part.locator("select[data-choose=kind]").select_option("predicted classes")
        assert over.get_attribute("data-kind") == "predicted classes"
        part.locator("select[data-choose=left]").select_option("TRADI")
        assert layers.locator("img:visible").count() == 1, "the same on both sides"
        assert overflowing(tab) <= 0


def test_all_that_can_be_used_has_a_name(tab: Any) -> None:
    nameless = tab.evaluate(
        """[...document.querySelectorAll('button, select, input, a, [role=region], [role=img], [role=group]')]
        .filter(one => !(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).length"""
    )
    assert nameless == 0
    assert tab.evaluate("document.documentElement.lang") == "en"
    identifiers = tab.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(chromium: Any, committed_page: Path, scheme: str) -> None:
    from tests.report.test_style import contrast

    colours = """place => { const hex = colour => '#' + colour.match(/\\d+/g).slice(0, 3)
        .map(part => Number(part).toString(16).padStart(2, '0')).join('');
        return [hex(getComputedStyle(place).color), hex(getComputedStyle(document.body).backgroundColor)]; }"""
    with opened(chromium, committed_page, scheme=scheme) as tab:
        for place in ("p.lead", "p.note", "td.paper", "td .sd", ".verdict.ahead", ".verdict.behind", "nav a"):
            assert contrast(*tab.locator(place).first.evaluate(colours)) >= 4.5, place
