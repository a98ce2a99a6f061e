"""The report as one page of HTML: everything inside, nothing fetched, light and dark."""

import importlib.resources
import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from agdopt.race import words
from agdopt.race.charts import Chart
from agdopt.race.paint import CARD, INK, LINE, MUTED, again, colour
from agdopt.race.standings import Entrant, Report


def page(report: Report, charts: Sequence[Chart]) -> str:
    template = importlib.resources.files("agdopt.race") / "page.html"
    about = report.plan.get("about") or ""
    newest = max(r.finished for r in report.runs)[:10]
    devices = sorted({str(r.environment.get("device", "an unnamed device")) for r in report.runs})
    facts = [words.count(len(report.runs), "run"), words.listed(devices)]
    return string.Template(template.read_text("utf-8")).substitute(
        title=escape(f"{report.name}: agdopt race"),
        name=escape(report.name),
        about=escape(" · ".join(filter(None, [about, *facts, newest]))),
        headline=escape(words.headline(report)),
        sentences="\n".join(
            f'<li data-of="{e.place}">{_dot(report, e)}{escape(words.sentence(report, e))}</li>'
            for e in report.entrants
        ),
        notes=_notes(report.notes),
        table=_results(report),
        charts="\n".join(_chart(c) for c in charts),
        hover="\n".join(_hover(e.place) for e in report.entrants),
        details=_details(report),
        footer="agdopt report · a function of the records beside it and of nothing else",
    )


def _dot(report: Report, e: Entrant) -> str:
    ring = " ring" if again(report, e) else ""
    return f'<span class="dot{ring}" style="color: {colour(report, e)}"></span>'


def _hover(place: int) -> str:
    """Pointing at an optimizer's name shows it in every chart."""
    return f'body:has([data-of="{place}"]:hover) svg [class^="of-"]:not(.of-{place}) {{ opacity: .12; }}'


def _notes(notes: Iterable[str]) -> str:
    said = "".join(f"<p>{escape(n)}</p>" for n in notes)
    return f'<div class="notes">{said}</div>' if said else ""


def _results(report: Report) -> str:
    table = words.columns(report)
    lines = []
    for e in report.entrants:
        cells = [escape(cell(e)) for cell in table.values()]
        verdict = e.comparison.verdict if e.comparison else ""
        cells[list(table).index("verdict")] = f'<span class="{verdict.replace(" ", "-")}">{verdict}</span>'
        cells[0] = _dot(report, e) + cells[0]
        lines.append(f'<tr data-of="{e.place}">{"".join(f"<td>{c}</td>" for c in cells)}</tr>')
    head = "".join(f"<th>{escape(title)}</th>" for title in table)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _chart(chart: Chart) -> str:
    return (
        f'<figure class="card{" wide" if chart.wide else ""}"><h2>{escape(chart.title)}</h2>'
        f"{_inline(chart)}<figcaption>{escape(chart.caption)} "
        f'<a href="charts/{chart.name}.svg">SVG</a></figcaption></figure>'
    )


def _inline(chart: Chart) -> str:
    """The drawing without its prologue; its names made its own, its greys the page's."""
    svg = chart.svg[chart.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1)
    svg = re.sub(r'id="(of-\d+)"', r'class="\1"', svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{chart.name}-", svg)
    for theirs, ours in ((INK, "ink"), (MUTED, "muted"), (LINE, "line"), (CARD, "card")):
        svg = svg.replace(theirs, f"var(--{ours})")
    return svg


def _details(report: Report) -> str:
    return "".join(
        f"<details><summary>{title}</summary>{body}</details>"
        for title, body in (
            ("The plan", _pretty(report.plan) + _settings(report)),
            ("Where it ran", _environment(report)),
        )
    )


def _pretty(value: Mapping[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False, default=str))}</pre>"


def _settings(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{_dot(report, e)}{escape(e.name)}</td><td><code>{escape(_call(e))}</code></td></tr>"
        for e in report.entrants
    )
    head = "<tr><th>optimizer</th><th>as it was run</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _call(e: Entrant) -> str:
    own = e.runs[0].recipe.get("optimizer", {})
    arguments = ", ".join(f"{k}={v!r}" for k, v in own.get("arguments", {}).items())
    rest = "".join(f"; {k} = {v}" for k, v in own.items() if k not in ("cls", "arguments") and v)
    found = f"; the best of {words.count(len(e.trials), 'trial')}" if e.trials else ""
    return f"{own.get('cls', '?')}({arguments}){rest}{found}"


def _environment(report: Report) -> str:
    """What differs between runs is listed with the number of runs it holds for."""
    facts: dict[str, Counter[str]] = {}
    for r in report.runs:
        own = {
            **r.environment,
            **r.versions,
            "commit": r.commit,
            "runs side by side": r.jobs,
            "CUDA graph": r.graph,
        }
        for key, value in own.items():
            if value is not None:
                facts.setdefault(key, Counter())[str(value)] += 1
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(_shares(values))}</td></tr>" for key, values in facts.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _shares(values: Counter[str]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({words.count(n, 'run')})" for value, n in values.most_common())
