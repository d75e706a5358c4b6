"""The page of all sentences is in step with the sources, and misses none of them."""

import pytest

from tests.report.sentences import NOT_PRINTED, PAGE, READERS, SOURCES, generated, texts


def test_the_page_is_as_generated():
    """After a change of words: python -m tests.report.sentences."""
    assert PAGE.read_text(encoding="utf-8") == generated()


@pytest.mark.parametrize(
    ("kind", "source", "found"),
    [
        (".py", 'said = f"For {share(x)} of GPU time {who} waited."', ["For 12 % of GPU time {who} waited."]),
        (".py", '"""A docstring that nobody is shown."""', []),
        (".py", "x = re.compile('some words that are a pattern')", []),
        (".py", "x = f\"the file {'is damaged' if bad else 'was read whole'} today\"", None),
        (".toml", '[rule]\nadvice = ["Give it more CPU cores."]', ["Give it more CPU cores."]),
        (".j2", '<p>No <b>file</b> was read: {{ why }}.</p>{{ empty("Nothing to be seen here.") }}', None),
    ],
)
def test_sentences_are_found_where_they_stand(tmp_path, kind, source, found):
    file = tmp_path / f"x{kind}"
    file.write_text(source, encoding="utf-8")
    told = list(texts(file))
    if found is None:
        found = {
            ".py": ["the file [is damaged\\|was read whole] today"],
            ".j2": ["Nothing to be seen here.", "No file was read: {…}."],
        }[kind]
    assert told == found


def test_no_file_is_forgotten():
    page = PAGE.read_text(encoding="utf-8")
    files = [file for file in SOURCES.rglob("*") if file.suffix in READERS and file.name not in NOT_PRINTED]
    silent = [str(file) for file in files if any(text not in page for text in texts(file))]
    assert len(files) > 200
    assert silent == []
