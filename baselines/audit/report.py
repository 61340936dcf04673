"""An audit as text, JSON or HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass

from baselines.audit.declared import Property
from baselines.audit.facts import Fact
from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict

ORDER = ("failed", "held", "not applicable")


@dataclass(frozen=True)
class Audit:
    """What was found of one optimizer."""

    subject: Subject
    version: str
    """The package and its version."""
    verdicts: Sequence[tuple[Property, Verdict]]
    facts: Sequence[Fact]

    def count(self, found: str) -> int:
        """Return the number of properties of a verdict."""
        return sum(verdict.found == found for _, verdict in self.verdicts)

    @property
    def has_failed(self) -> bool:
        """Whether a property failed."""
        return self.count("failed") > 0

    @property
    def setting(self) -> str:
        """What was trained, and with which hyperparameters."""
        given = ", ".join(f"{key}={value}" for key, value in self.subject.given.items()) or "defaults"
        closure = " by a closure" if self.subject.by_closure else ""
        return f"{self.subject.task.name}{closure}, {given}; {self.version}"

    @property
    def sums(self) -> str:
        """The numbers of verdicts."""
        return ", ".join(f"{self.count(found)} {found}" for found in ORDER)

    def in_order(self) -> list[tuple[Property, Verdict]]:
        """Return the verdicts, failures first."""
        return sorted(self.verdicts, key=lambda pair: ORDER.index(pair[1].found))


def as_text(audit: Audit) -> str:
    """Return a report of plain text."""
    lines = [f"{audit.subject}: {audit.sums}", f"trained {audit.setting}", ""]
    for prop, verdict in audit.in_order():
        lines.append(f"{verdict.found:15}{prop.name}" + (f": {verdict.statement}" if verdict.statement else ""))
        if verdict.reproducer:
            lines += [f"    {line}" for line in (prop.statement, "", *verdict.reproducer.splitlines(), "")]
    lines += ["", *(f"{'fact':15}{fact.name}: {fact.statement}" for fact in audit.facts), ""]
    return "\n".join(lines)


def as_json(audit: Audit) -> str:
    """Return a report as a JSON object."""
    return json.dumps(
        {
            "subject": audit.subject.target,
            "setting": audit.setting,
            "version": audit.version,
            "properties": [
                {"property": prop.name, "statement": prop.statement}
                | {"verdict": verdict.found, "measured": verdict.statement, "reproducer": verdict.reproducer}
                for prop, verdict in audit.verdicts
            ],
            "facts": [fact._asdict() for fact in audit.facts],
        },
        indent=2,
    )


def as_html(audit: Audit) -> str:
    """Return a report as one page without scripts."""
    rows = []
    for prop, verdict in audit.in_order():
        script = f"<pre>{html.escape(verdict.reproducer)}</pre>" if verdict.reproducer else ""
        cells = (verdict.found, prop.name, prop.statement, verdict.statement)
        texts = [html.escape(cell) for cell in cells]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts[:-1]) + f"<td>{texts[-1]}{script}</td></tr>")
    rows += [
        f"<tr><td>fact</td><td>{f.name}</td><td></td><td>{html.escape(f.statement)}</td></tr>" for f in audit.facts
    ]
    title = html.escape(f"Audit of {audit.subject}")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>'
        "body{font-family:sans-serif;margin:2em}td{vertical-align:top;border-top:1px solid #ccc;padding:.3em .8em}"
        f"</style></head><body><h1>{title}</h1><p>{html.escape(audit.sums)}; trained {html.escape(audit.setting)}</p>"
        f"<table>{''.join(rows)}</table></body></html>\n"
    )


FORMATS = {"text": as_text, "json": as_json, "html": as_html}
