"""The Chinese of the pages: a browser shows it, see tests/browser; here, that none is missing."""

import re

from places import ROOT

FOLDERS = ("checks", "evaluation", "experiments", "report", "service")
SOURCES = [path for folder in FOLDERS for path in (ROOT / "ernie_pair" / folder).glob("*.*[yl]")]
TABLE = (ROOT / "ernie_pair/report/chinese.tsv").read_text(encoding="utf-8")
TAG = r"<(?:h\d|th|dt|summary|button|label)\b[^>]*>([A-Z][^<>{}]+)</"
TITLE = r'\b(?:Step|Table|draw_chart|card)\("([^"{]+)"|grid\(\["([^"{]+)"'


def test_every_heading_has_its_chinese():
    said = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path.stem != "quickstart")
    heads = set(filter(None, (text for found in re.findall(f"{TAG}|{TITLE}", said) for text in found)))
    known = {row.split("\t")[0].replace("(s)", end) for row in TABLE.splitlines() for end in ("", "s")}
    assert len(heads) > 70 and heads - known == {"Precision", "Recall", "F1", "Accuracy", "ROC"}
