from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from tradi.progress import hosted_by, time_left, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def replace_stderr(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO) -> None:
    # Called by the tests themselves: between a fixture and its test pytest puts its own standard error back.
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")


def test_items_pass_through_in_silence_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    replace_stderr(monkeypatch, screen)
    assert list(track(range(5), "counting", 5)) == [0, 1, 2, 3, 4]
    assert screen.getvalue() == ""


def test_a_bar_inside_a_bar_is_silent_and_the_next_one_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    replace_stderr(monkeypatch, terminal)
    for _ in track(range(2), "outer", 2):
        assert list(track(range(3), "inner", 3)) == [0, 1, 2]
    printed = terminal.getvalue()
    assert "outer" in printed
    assert "inner" not in printed
    list(track(range(2), "after", 2))
    assert "after" in terminal.getvalue()


def test_without_rich_there_is_no_bar_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_stderr(monkeypatch, Terminal())
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert list(track("abc", "letters")) == ["a", "b", "c"]


def test_an_error_in_the_middle_leaves_the_next_bar_working(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    replace_stderr(monkeypatch, terminal)

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(track(broken(), "broken", 2))
    list(track(range(2), "healthy", 2))
    assert "healthy" in terminal.getvalue()


def test_a_bar_inside_a_host_is_a_line_of_it_and_leaves_with_its_end() -> None:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=io.StringIO())) as progress, hosted_by(progress):
        for _ in track(range(2), "outer", 2):
            (line,) = progress.tasks
            assert (line.description.strip(), line.total) == ("outer", 2)
            assert list(track(range(3), "inner", 3)) == [0, 1, 2]
            assert len(progress.tasks) == 1
        assert progress.tasks == []


def test_the_time_left_is_that_of_items_like_those_done() -> None:
    clock = [0.0]
    with Progress(time_left(), console=Console(quiet=True), auto_refresh=False, get_time=lambda: clock[0]) as progress:
        progress.add_task("", total=14)
        (task,) = progress.tasks
        column = progress.columns[0]
        assert isinstance(column, ProgressColumn)
        assert column.render(task) == Text("-:--:--")
        clock[0] = 100.0
        progress.advance(task.id, 2)  # two processes end at once
        assert column.render(task) == Text("0:10:00")
        clock[0] = 160.0
        assert column.render(task) == Text("0:09:00"), "it runs down until the next ones end"
        clock[0] = 2000.0
        assert column.render(task) == Text("0:00:00")
