import pytest

from moebench.backends.protocol import Backend
from moebench.backends.registry import backend_names, describe_backends, load_backend
from moebench.errors import UsageError


class Unnamed(Backend):
    def layer(self, l, x_TD, ids_TK, scores_TK):
        return x_TD


class Dashed(Unnamed):
    name = "my-kernel"


class Impostor(Unnamed):
    name = "mok"


class FaultyImpostor(Unnamed):
    name = "faulty"


def not_a_class():
    return None


@pytest.mark.parametrize("name", ["torch", "dist_moe", "mok"])
def test_registered_names_load(name):
    assert load_backend(name).name == name


def test_a_class_of_ones_own_loads_by_path():
    assert load_backend("tests.third_party.ring_moe:RingMoe").name == "ring_moe"


def test_the_faulty_backend_loads_by_name_and_is_listed_nowhere():
    assert load_backend("faulty").pipelines == load_backend("torch").pipelines
    assert "faulty" not in backend_names()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nope", ["no backend named 'nope'", "dist_moe, mok, torch"]),
        ("no.such.module:Class", ["no.such.module", "PYTHONPATH"]),
        ("tests.backends.test_registry:Missing", ["has no class 'Missing'"]),
        ("tests.backends.test_registry:not_a_class", ["not a subclass", "Backend"]),
        ("tests.backends.test_registry:Unnamed", ["`name` is None"]),
        ("tests.backends.test_registry:Dashed", ["'my-kernel'", "letters, digits and _"]),
        ("tests.backends.test_registry:Impostor", ["'mok'", "registered", "choose another"]),
        ("tests.backends.test_registry:FaultyImpostor", ["'faulty'", "registered", "choose another"]),
    ],
)
def test_what_cannot_be_a_backend_is_refused_by_name(text, parts):
    with pytest.raises(UsageError) as refusal:
        load_backend(text)
    for part in parts:
        assert part in str(refusal.value)


def test_description_says_what_each_supports_and_what_is_missing():
    found = {backend["name"]: backend["implementations"] for backend in describe_backends()}
    assert list(found) == backend_names()
    portable, library = found["dist_moe"]
    assert (portable["implementation"], portable["missing"]) == ("portable", None)
    assert {s["precision"]: s["pipelines"] for s in portable["supports"]} == {
        "bf16": ["standard"],
        "mxfp8": ["staged", "mega"],
    }
    assert library["implementation"] == "library"
