"""RESULTS.md is made from the results of all questions."""

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.figure import Figure
from benchmarks.questions import Question


def test_what_was_measured_by_hand_stays_until_the_question_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    figures = [Figure("a step", 1.5, "ms", at_most=2)]
    question = Question("steps", "Steps", lambda: figures)
    monkeypatch.setattr(report, "_HERE", tmp_path)
    monkeypatch.setattr(report, "_RESULTS", results)
    monkeypatch.setattr(report, "questions", lambda: [question])
    monkeypatch.setattr(report, "published", list)
    report.save(question, figures, 0.5)
    (results / "steps.md").write_text("Since then it takes 1.2 ms.\n")
    for _ in range(2):
        report.render()
        written = (tmp_path / "RESULTS.md").read_text()
        assert written.index("| a step | 1.5 ms |") < written.index("Since then it takes 1.2 ms.")
    report.save(question, figures, 0.5)
    report.render()
    assert "Since then" not in (tmp_path / "RESULTS.md").read_text()
    assert json.loads((results / "steps.json").read_text())["figures"][0]["name"] == "a step"
