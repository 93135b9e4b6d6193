import pytest
from tests.arms.small import preset, write_text

from moebench.arms.config import DataConfig
from moebench.arms.corpus import load_corpus, standard_library
from moebench.arms.data import prepare
from moebench.arms.tokenizer import load_tokenizer, train_tokenizer
from moebench.errors import UsageError

PRESET = preset(data={"heldout_share": 0.2})


@pytest.fixture
def files(tmp_path):
    (tmp_path / "text").mkdir()
    return write_text(tmp_path / "text")


def made(tmp_path, files, chosen=PRESET, tokenizer=None):
    told: list[str] = []
    return prepare(chosen, files, tokenizer, told.append, tmp_path / "cache"), told


def test_default_text_is_the_library_of_the_running_python_without_what_was_installed():
    name, paths = standard_library()
    assert name.startswith("standard library of Python 3.")
    assert any(path.name == "argparse.py" for path in paths)
    assert not any("site-packages" in path.parts for path in paths)


def test_documents_are_held_out_by_content_alone(files, tmp_path):
    config = DataConfig(heldout_share=0.2)
    corpus, backwards = load_corpus(files, config), load_corpus(files[::-1], config)
    assert corpus.sha256 == backwards.sha256
    assert {d.path for d in corpus.heldout}.isdisjoint({d.path for d in corpus.train})
    assert len(corpus.heldout) + len(corpus.train) == 24
    assert 1 <= len(corpus.heldout) <= 12
    files[3].write_text("changed")
    assert load_corpus(files, config).sha256 != corpus.sha256


def test_a_corpus_can_be_cut_to_a_size(files):
    whole, part = (load_corpus(files, DataConfig(corpus_bytes=size)) for size in (2**31, 5000))
    assert part.size_bytes < whole.size_bytes
    assert part.size_bytes >= 5000


def test_one_large_file_is_held_out_in_part(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {i} of a long text\n" for i in range(20_000)))
    corpus = load_corpus([path], DataConfig(heldout_share=0.3))
    pieces = sorted([*corpus.train, *corpus.heldout], key=lambda piece: piece.start)
    assert "".join(piece.text() for piece in pieces) == path.read_text()
    assert corpus.heldout
    assert all(piece.text().endswith("\n") for piece in pieces)


def test_text_is_encoded_once_and_its_facts_are_stated(files, tmp_path):
    text, told = made(tmp_path, files)
    again, told_again = made(tmp_path, files)
    assert len(told) == 2
    assert told_again == []
    assert again.facts == text.facts
    facts = text.facts
    assert (len(text.train()), len(text.heldout())) == (facts.train_tokens, facts.heldout_tokens)
    assert facts.documents == 24
    assert 0 < facts.occurring_share <= 1
    tokenizer = load_tokenizer(text.folder / "tokenizer.json")
    corpus = load_corpus(files, PRESET.data)
    assert tokenizer.decode(text.heldout().tolist()) == "".join(document.text() for document in corpus.heldout)


def test_the_most_frequent_token_has_rank_0_and_every_token_a_rank(files, tmp_path):
    text, _ = made(tmp_path, files)
    ranks = text.ranks_by_frequency(300)
    counts = [0] * 300
    for token in text.train().tolist():
        counts[token] += 1
    assert counts[ranks.tolist().index(0)] == max(counts)
    assert sorted(ranks.tolist()) == list(range(300))


@pytest.mark.parametrize("name", ["train.bin", "text.json"])
def test_a_damaged_cache_is_made_again(files, tmp_path, name):
    text, _ = made(tmp_path, files)
    (text.folder / name).write_bytes(b"abc\n")
    again, told = made(tmp_path, files)
    assert told
    assert len(again.train()) == again.facts.train_tokens


def test_a_tokenizer_may_be_given_but_must_fit_the_model(files, tmp_path):
    path = tmp_path / "tokenizer.json"
    train_tokenizer(["some text and some more text"] * 3, 280).save(str(path))
    text, _ = made(tmp_path, files, tokenizer=path)
    assert text.facts.tokenizer == "tokenizer.json"
    with pytest.raises(UsageError, match=r"its vocabulary has 2\d\d tokens and the model's 200. Give a smaller"):
        made(tmp_path, files, preset(model={"vocab": 200}), path)
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        made(tmp_path, files, tokenizer=path)


def test_text_shorter_than_a_sequence_is_refused(files, tmp_path):
    with pytest.raises(UsageError, match=r"the (training|held-out) text has \d+ tokens, and a sequence needs 100001"):
        made(tmp_path, files, preset(model={"seq": 100_000}))


def test_files_that_are_no_text_to_train_on_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"--data .*gone\.txt: not there"):
        made(tmp_path, [tmp_path / "gone.txt"])
    (tmp_path / "one.txt").write_text("too little")
    with pytest.raises(UsageError, match="too little text to train on one part and hold out another"):
        made(tmp_path, [tmp_path / "one.txt"])
