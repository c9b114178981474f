"""The plot of a run: a panel for each transport and operation, the time of a transfer over the lists, as
SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from columns import Column
from record import Record
from table import TRANSPORT_TITLES, columns_of, duration

WIDTH, PANEL_HEIGHT, TOP, LEFT, GAP = 1180, 340, 64, 64, 60
BOTTOM = 62
INK, FAINT, PAPER = "#1f2430", "#dfe3ea", "#ffffff"
_UNITS = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
STYLES = {
    "kvxfer-prepared": ("#0b57d0", "circle"),
    "kvxfer-raw": ("#12a3b8", "diamond"),
    "kvxfer-blocks": ("#6a4bbd", "square"),
    "nixl": ("#d9480f", "triangle"),
    "mooncake": ("#7a6a00", "cross"),
}
"""Colour and shape: no two differ by the colour alone."""


def svg(record: Record) -> str:
    """The whole picture."""
    rows = record.rows()
    shown = columns_of(record)
    transports = list(dict.fromkeys(t for t, _, _ in rows))
    ops = list(dict.fromkeys(op for _, _, op in rows))
    height = TOP + (PANEL_HEIGHT + BOTTOM) * max(1, len(transports))
    width = (WIDTH - LEFT - GAP * (len(ops) - 1) - 16) / max(1, len(ops))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        "<title>Time of a transfer by list, kvxfer and its peers</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        *_legend(shown),
    ]
    for i, transport in enumerate(transports):
        low, high = _range(record, transport)
        for j, op in enumerate(ops):
            x, y = LEFT + j * (width + GAP), TOP + i * (PANEL_HEIGHT + BOTTOM)
            cases = list(dict.fromkeys(c for t, c, o in rows if (t, o) == (transport, op)))
            out += _Panel(record, transport, op, cases, (x, y, width), (low, high)).draw(shown)
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend(shown: Sequence[Column]) -> list[str]:
    out, x = [], float(LEFT)
    for column in shown:
        out.append(_mark(column.name, x + 6, 20))
        out.append(f'<text x="{x + 18:.0f}" y="24">{escape(column.title)}</text>')
        x += 40 + 7.2 * len(column.title)
    words = "median time of a transfer, bars from the first quarter to the third; lower is better"
    return [*out, f'<text x="{LEFT}" y="44" fill="#5a6272">{words}</text>']


def _range(record: Record, transport: str) -> tuple[float, float]:
    """Times in us that hold all values of a transport: 1, 2 or 5 times a power of ten."""
    spreads = [c.time_us for c in record.cells if c.transport == transport and c.time_us]
    if not spreads:
        return 1.0, 10.0
    least, most = min(s.p25 for s in spreads), max(s.p75 for s in spreads)
    steps = [k * 10.0**power for power in range(-4, 10) for k in (1, 2, 5)]
    low = max((s for s in steps if s < least), default=steps[0])
    high = min((s for s in steps if s > most), default=steps[-1])
    return low, high


class _Panel:
    def __init__(
        self,
        record: Record,
        transport: str,
        op: str,
        cases: Sequence[str],
        place: tuple[float, float, float],
        bounds: tuple[float, float],
    ) -> None:
        self.record, self.transport, self.op, self.cases = record, transport, op, cases
        self.x, self.y, self.width = place
        self.low, self.high = bounds

    def at(self, us: float) -> float:
        share = math.log(us / self.low) / math.log(self.high / self.low)
        return self.y + PANEL_HEIGHT - share * (PANEL_HEIGHT - 28)

    def draw(self, shown: Sequence[Column]) -> list[str]:
        bottom, right = self.y + PANEL_HEIGHT, self.x + self.width
        title = f"{self.op.upper()}, {TRANSPORT_TITLES[self.transport]}"
        out = [f'<text x="{self.x:.0f}" y="{self.y + 14:.0f}" font-weight="600">{escape(title)}</text>']
        powers = (10.0**p for p in range(-4, 10))
        for us in sorted({self.low, self.high, *(p for p in powers if self.low < p < self.high)}):
            y = self.at(us)
            label = next(f"{us / n:g} {unit}" for unit, n in _UNITS if us >= n)
            out.append(f'<path d="M{self.x:.1f} {y:.1f}H{right:.1f}" stroke="{FAINT}"/>')
            out.append(f'<text x="{self.x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        step = self.width / max(1, len(self.cases))
        for i, case in enumerate(self.cases):
            x = self.x + (i + 0.5) * step
            out.append(
                f'<text transform="translate({x + 4:.1f} {bottom + 14:.1f}) rotate(-30)" text-anchor="end" '
                f'font-size="11">{escape(case)}</text>'
            )
        for k, column in enumerate(shown):
            shift = (k - (len(shown) - 1) / 2) * min(9.0, 0.7 * step / len(shown))
            out += self._series(column.name, step, shift)
        return out

    def _series(self, name: str, step: float, shift: float) -> list[str]:
        colour, _ = STYLES[name]
        bars, marks, points = [], [], []
        for i, case in enumerate(self.cases):
            cell = self.record.best(self.transport, case, self.op, name)
            if cell is None or cell.time_us is None:
                continue
            x, y = self.x + (i + 0.5) * step + shift, self.at(cell.time_us.median)
            points.append(f"{x:.1f},{y:.1f}")
            quarters = f"M{x:.1f} {self.at(cell.time_us.p25):.1f}V{self.at(cell.time_us.p75):.1f}"
            bars.append(f'<path d="{quarters}" stroke="{colour}" stroke-width="2"/>')
            words = f"{name} {case} {self.op}: {duration(cell.time_us.median)}"
            marks.append(f"<g><title>{escape(words)}</title>{_mark(name, x, y)}</g>")
        if not points:
            return []
        line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-opacity="0.35"/>'
        return [line, *bars, *marks]


def _mark(name: str, x: float, y: float) -> str:
    colour, shape = STYLES[name]
    paths = {
        "diamond": f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
        "square": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        "triangle": f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
        "cross": f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8",
    }
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    if shape == "cross":
        return f'<path d="{paths[shape]}" stroke="{colour}" stroke-width="2.5" fill="none"/>'
    return f'<path d="{paths[shape]}" fill="{colour}"/>'
