"""A verdict as JUnit XML, which CI systems show as tests.

The elements and attributes are those that Jenkins' junit-10.xsd takes, in its order. A check without a verdict is an
error: it is no pass, and not the server's failure either.
"""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from ingest_bench.report.gate import Verdict

# What XML 1.0 has no character for, not even an escape (section 2.2, Char).
_NO_CHARACTER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {"fail": "failure", "no verdict": "error"}


def xml(verdict: Verdict, name: str) -> str:
    """The document: one suite of that name, a test for each check."""
    outcomes = Counter(check.outcome for check in verdict.checks)
    counted = {
        "tests": str(len(verdict.checks)),
        "failures": str(outcomes["fail"]),
        "errors": str(outcomes["no verdict"]),
    }
    root = ElementTree.Element("testsuites", counted)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(name), **counted})
    seen: Counter[tuple[str, str]] = Counter()
    for check in verdict.checks:
        seen[check.cell, check.column] += 1
        again = seen[check.cell, check.column]
        # Two tests of one name are one to Jenkins.
        title = check.column if again == 1 else f"{check.column} ({again})"
        test = ElementTree.SubElement(suite, "testcase", {"name": _text(title), "classname": _text(check.cell)})
        if check.outcome == "pass":
            ElementTree.SubElement(test, "system-out").text = _text(check.text)
        else:
            named = {"message": _text(check.text), "type": check.outcome}
            ElementTree.SubElement(test, _ELEMENTS[check.outcome], named).text = _text(check.text)
    if verdict.notes:
        ElementTree.SubElement(suite, "system-out").text = _text("\n".join(verdict.notes))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NO_CHARACTER.sub("\ufffd", text)
