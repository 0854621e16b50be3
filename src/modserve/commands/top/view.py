"""The live form of ``modserve top``, by rich, which is imported here and nowhere else."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .frame import HEAD, RIGHT, SERVER_HEAD, SERVER_RIGHT, Frame, advice_line, cells, server_cells, summary

_STYLES = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNLOADED": "dim", "UNAVAILABLE": "bold red"}
_BARS = " ▁▂▃▄▅▆▇█"


def show(frames: Iterable[Frame], console: Console | None = None) -> None:
    """Show each frame in place of the one before, until there is none."""
    with Live(Text("…"), console=console, screen=True, auto_refresh=False) as live:
        for frame in frames:
            live.update(view(frame), refresh=True)


def view(frame: Frame) -> RenderableType:
    """Draw a frame with rich."""
    table = _table(HEAD, RIGHT)
    for row in frame.rows:
        texts: list[Text] = [Text(text) for text in cells(row)]
        texts[2].stylize(_STYLES.get(row.state, ""))
        texts[4].stylize("yellow" if row.waiting > 0 else "")
        texts[10].stylize("bold red" if row.errors_per_second > 0 else "")
        table.add_row(*texts, style="" if row.per_second > 0 else "dim")
    parts: list[RenderableType] = [Text(summary(frame), style="bold")]
    if frame.history:
        parts.append(Text(f"{bars(frame.history)}  requests/s, at most {max(frame.history):,.0f}", style="cyan"))
    if frame.remark:
        parts.append(Text(frame.remark, style="yellow"))
    if frame.servers:
        servers = _table(SERVER_HEAD, SERVER_RIGHT)
        for line in frame.servers:
            servers.add_row(*server_cells(line), style="bold red" if line.figures is None else "")
        parts.append(servers)
    return Group(*parts, table, Text(advice_line(frame)), Text("Ctrl-C to quit", style="dim"))


def _table(head: Sequence[str], sides: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    for name, side in zip(head, sides, strict=True):
        table.add_column(name, justify="right" if side == "r" else "left", no_wrap=True)
    return table


def bars(values: Sequence[float]) -> str:
    """Return a bar character for each value, with a height relative to the largest."""
    most = max(values, default=0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] if most > 0 else _BARS[0] for value in values)
