"""Questions about the embedded stories, with their answers: labelled text that needs no network.

A story ends by saying who is where with what; a question asks for one of these facts. The answer is a person, a thing
or a place that the ending names, or nobody or nothing.
"""

from __future__ import annotations

from oelm.data import stories
from oelm.data.tables import Row

QUESTIONS = "story-questions"
TRAIN_STORIES, HELD_OUT_STORIES = 2000, 60
_CLOSING = "In the end"


def question_tables(seed: int) -> dict[str, list[Row]]:
    """Return the rows of train, val and test, each of stories of its own."""
    tables: dict[str, list[Row]] = {}
    first = 0
    for split, count in (("train", TRAIN_STORIES), ("val", HELD_OUT_STORIES), ("test", HELD_OUT_STORIES)):
        tables[split] = [
            {"ending": _ending(story), "question": question.text, "answer": question.answer}
            for story in stories.generate(seed, count, first)
            for question in story.questions
        ]
        first += count
    return tables


def _ending(story: stories.Story) -> str:
    return story.text[story.text.rindex(_CLOSING) :].strip()
