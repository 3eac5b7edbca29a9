"""How plainly docstrings and pages read: counts of words that stand for a noun instead of naming it."""

import ast
import re
from pathlib import Path

import pytest

from tests import import_graph

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jfluid"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Vague words in a thousand.
MOST_OF_SUMMARIES, MOST_OF_MESSAGES, MOST_OF_PAGES, MOST_OF_A_PAGE = 4.0, 4.0, 6.0, 8.0
MOST_FIRST_WORDS = 0.5  # percent of the summaries
FEWEST_WORDS = 60  # of a page that is counted by itself: one vague word in fewer is no style

VAGUE = re.compile(
    r"\b(?:those|them|they|what|whose|who|nobody|somebody|something|others|another"
    r"|of which|such a|one of|its own|of its|so many|as many)\b",
    re.IGNORECASE,
)
FIRST = re.compile(
    r"(?:What|Which|Whether|Of|Those|That|Such|Who|Where|How|As|So|By|From|With|One|It)\b",
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def summaries(nodes):
    """Return the first paragraph of each docstring of a module, on one line."""
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, _DOCUMENTED))
    return [" ".join(text.strip().split("\n\n")[0].split()) for text in found if text and text.strip()]


_TELLS = {"add_note", "debug", "error", "info", "print", "tell", "warn", "warn_once", "warning"}


def messages(nodes):
    """Return the texts of a module's errors, warnings and log lines, of three words and more."""
    found = []
    for node in nodes:
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if (isinstance(node, ast.Raise) and node.exc) or name in _TELLS:
            texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            found += [text for text in texts if isinstance(text, str) and len(text.split()) > 2]
    return found


def prose(page):
    """Return the sentences of a page: no examples, tables and headings."""
    return " ".join(line for line in _FENCE.sub("", page).split("\n") if not line.startswith(("|", "#", "    ", "<")))


def in_a_thousand(texts):
    """Return the vague words in a thousand words, and the texts with most of these words, as a message."""
    counted = sorted(((len(VAGUE.findall(text)), text) for text in texts), reverse=True)
    words = sum(len(text.split()) for text in texts)
    worst = "".join(f"\n{', '.join(VAGUE.findall(text))}: {text[:200]}" for number, text in counted[:20] if number)
    return 1000 * sum(number for number, _ in counted) / max(1, words), worst


@pytest.fixture(scope="module")
def of_the_package():
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if "_pb2" not in path.name]
    return [summary for path in files for summary in summaries(import_graph.nodes(path))]


def test_summaries_name_their_nouns(of_the_package):
    rate, worst = in_a_thousand(of_the_package)
    assert rate <= MOST_OF_SUMMARIES, f"{rate:.1f} vague words in a thousand:{worst}"


def test_summaries_begin_with_a_verb_or_a_noun(of_the_package):
    found = [summary for summary in of_the_package if FIRST.match(summary)]
    share = 100 * len(found) / len(of_the_package)
    assert share <= MOST_FIRST_WORDS, f"{share:.1f}% of the summaries:\n" + "\n".join(found[:40])


def test_messages_name_their_nouns():
    found = [text for path in sorted(PACKAGE.rglob("*.py")) for text in messages(import_graph.nodes(path))]
    assert len(found) > 1000
    rate, worst = in_a_thousand(found)
    assert rate <= MOST_OF_MESSAGES, f"{rate:.1f} vague words in a thousand:{worst}"


def test_pages_name_their_nouns():
    rate, worst = in_a_thousand([prose(page.read_text()) for page in PAGES])
    assert rate <= MOST_OF_PAGES, f"{rate:.1f} vague words in a thousand:{worst}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_its_nouns(page):
    text = prose(page.read_text())
    if len(text.split()) >= FEWEST_WORDS:
        rate, worst = in_a_thousand(re.split(r"(?<=[.:;])\s+", text))
        assert rate <= MOST_OF_A_PAGE, f"{rate:.1f} vague words in a thousand:{worst}"


def test_vague_words_are_counted():
    rate, worst = in_a_thousand(["What one of them holds, nobody knows.", "Load the value at an offset."])
    assert rate == 1000 * 4 / 13
    assert worst == "\nWhat, one of, them, nobody: What one of them holds, nobody knows."
    source = '"""Of modules."""\n\nclass A:\n    """A class.\n\n    What follows is no summary.\n    """\n'
    found = summaries(ast.walk(ast.parse(source)))
    assert found == ["Of modules.", "A class."] and [bool(FIRST.match(text)) for text in found] == [True, False]
    page = "# What\n\nText of a page.\n\n| what |\n\n```\nwhat\n```\n<!-- what -->\n    what\nThe end.\n"
    assert prose(page).split() == "Text of a page. The end.".split()
