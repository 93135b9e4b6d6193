import pytest

from moebench.cases.expand import Flags, select
from moebench.cases.matrix import load_matrix
from moebench.errors import UsageError

GOOD = """
[shape]
T = 8
D = 64
E = 8
K = 2
F = 64
[measure]
windows = 2
[capacity]
pad_rows = 8
[profiles]
A = [1.5, 0.5]
[[sweep]]
category = "single_layer"
backend = "mok"
mode = "inference"
ep = [2, 4]
precision = "bf16"
imbalance = [1, 2]
[[sweep]]
category = "packing"
backend = "mok"
mode = "training"
ep = 2
precision = "bf16"
profile = "A"
"""
FIRST_BLOCK = GOOD[GOOD.index("[[sweep]]") : GOOD.rindex("[[sweep]]")]


def cases_of(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return select(load_matrix(str(path))).cases


def test_the_matrix_that_the_others_break_is_good(tmp_path):
    assert len(cases_of(tmp_path, GOOD)) == 5


BLOCK_1, BLOCK_2 = "[[sweep]] block 1", "[[sweep]] block 2"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[shape]", "colour = 1\n[shape]", ["unknown key `colour`", "1", "shape, measure, capacity"]),
        ("[shape]", 'name = "x"\n[shape]', ["unknown key `name`", "'x'"]),
        ("T = 8", "T = 8\nQ = 1", ["[shape]", "unknown key `Q`", "T, D, E, K, F, S"]),
        ("T = 8", "t = 8", ["[shape]", "unknown key `t`"]),
        ("T = 8\n", "", ["[shape]", "`T` is missing"]),
        ("windows = 2", "window = 2", ["[measure]", "unknown key `window`", "windows"]),
        ("pad_rows = 8", "pad = 8", ["[capacity]", "unknown key `pad`", "pad_rows"]),
        ("ep = 2\n", "ep = 2\neps = 3\n", [BLOCK_2, "unknown key `eps`", "backend"]),
        ("ep = 2\n", "", [BLOCK_2, "`ep` is missing"]),
        ("ep = 2\n", "ep = 2\nshape = {F = 64}\n", [BLOCK_2, "unknown key `F`", "T, D, E, K, S"]),
        ("ep = 2\n", "ep = 2\nmeasure = {w = 3}\n", [BLOCK_2, "measure", "unknown key `w`", "windows"]),
        ("ep = 2\n", "ep = 2\ncapacity = {w = 3}\n", [BLOCK_2, "capacity", "unknown key `w`", "slot_factor"]),
        ("ep = 2\n", "ep = 2\nmeasure = {windows = 0}\n", [BLOCK_2, "measure", "`windows`", "value 0"]),
        ("ep = 2\n", "ep = 2\ncapacity = {slot_factor = -1}\n", [BLOCK_2, "`slot_factor`", "value -1"]),
        ("ep = 2\n", "ep = 2\ncapacity = {slot_factor = inf}\n", [BLOCK_2, "`slot_factor`", "value inf"]),
        ("ep = 2\n", "ep = 2\ncapacity = {slot_factor = nan}\n", [BLOCK_2, "`slot_factor`", "value nan"]),
        ("ep = 2\n", "ep = 2\nmeasure = 3\n", [BLOCK_2, "`measure`", "value 3", "table"]),
        ("ep = 2\n", "ep = 2\nshape = {T = 0}\n", [BLOCK_2, "`T`", "value 0"]),
        ("T = 8", 'T = "8"', ["[shape]", "`T`", "'8'", "integer"]),
        ("T = 8", "T = 8.0", ["[shape]", "`T`", "8.0", "integer"]),
        ("T = 8", "T = true", ["[shape]", "`T`", "value true", "integer"]),
        ("T = 8", "T = -8", ["[shape]", "`T`", "value -8", "greater than or equal to 1"]),
        ("T = 8", f"T = {10**30}", ["[shape]", "`T`", "less than or equal to"]),
        ("E = 8", f"E = {2**40}", ["[shape]", "`E`", "less than or equal to"]),
        ("D = 64", "D = 36", [BLOCK_1, "D=36 is not a multiple of 8"]),
        ("windows = 2", "windows = true", ["[measure]", "`windows`", "value true"]),
        ("windows = 2", f"windows = {10**30}", ["[measure]", "`windows`", "less than or equal to"]),
        ("windows = 2", "max_window_spread = 0.0", ["[measure]", "`max_window_spread`", "0.0"]),
        ("windows = 2", "seed = -1", ["[measure]", "`seed`", "-1"]),
        ("ep = [2, 4]", 'ep = "2"', [BLOCK_1, "`ep`", "'2'", "integer"]),
        ("ep = [2, 4]", 'ep = [2, "4"]', [BLOCK_1, "`ep`", "'4'", "integer"]),
        ("ep = [2, 4]", "ep = true", [BLOCK_1, "`ep`", "true"]),
        ("ep = [2, 4]", "ep = 0", [BLOCK_1, "`ep`", "value 0"]),
        ("ep = [2, 4]", "ep = []", [BLOCK_1, "`ep`", "must not be empty"]),
        ("ep = [2, 4]", "ep = 3", [BLOCK_1, "E=8 experts do not divide over ep=3"]),
        ("ep = [2, 4]", f"ep = {10**30}", [BLOCK_1, "E=8 experts do not divide"]),
        ("ep = [2, 4]", "ep = [2, 2]", [BLOCK_1, "duplicate", "mok-inference-ep2-bf16-native-single_layer-i1"]),
        ("imbalance = [1, 2]", "imbalance = []", [BLOCK_1, "`imbalance`", "must not be empty"]),
        ("imbalance = [1, 2]", "imbalance = [1, -1]", [BLOCK_1, "`imbalance`", "value -1"]),
        ("imbalance = [1, 2]", "imbalance = [nan]", [BLOCK_1, "`imbalance`", "nan"]),
        ("imbalance = [1, 2]", "imbalance = 1e308", [BLOCK_1, "imbalance 1e+308 is outside 0..2"]),
        ("imbalance = [1, 2]", 'imbalance = 1\nprofile = "A"', [BLOCK_1, "`profile`", "packing"]),
        ('profile = "A"', 'profile = "A"\nimbalance = 1', [BLOCK_2, "`imbalance`", "packing"]),
        ('profile = "A"', 'profile = "C"', [BLOCK_2, "`profile`", "'C'", "has A"]),
        ('profile = "A"', "", [BLOCK_2, "packing needs the key `profile`"]),
        ("A = [1.5, 0.5]", "A = []", ["[profiles]", "`A`", "must not be empty"]),
        ("A = [1.5, 0.5]", "A = [1.0, -1]", ["[profiles]", "`A`", "value -1"]),
        ("A = [1.5, 0.5]", "A = [1.0, 8.0]", [BLOCK_2, "layer 1: imbalance 8 is outside 0..2"]),
        ("A = [1.5, 0.5]", "A-b = [1.0]", ["[profiles]", "`A-b`"]),
        ('mode = "training"', 'mode = "train"', [BLOCK_2, "`mode`", "'train'", "'inference' or 'training'"]),
        ('category = "packing"', 'category = "pack"', [BLOCK_2, "`category`", "'pack'"]),
        ('precision = "bf16"', 'precision = "fp8"', [BLOCK_1, "`precision`", "'fp8'", "'bf16', 'mxfp8' or 'nvfp4'"]),
        ('backend = "mok"', 'backend = "deepep"', [BLOCK_1, "`backend`", "'deepep'", "dist_moe, mok, torch"]),
        ("ep = 2\n", 'ep = 2\npipeline = "fast"\n', [BLOCK_2, "`pipeline`", "'fast'", "'mega'"]),
        ("ep = 2\n", 'ep = 2\npipeline = "mega"\n', [BLOCK_2, "`pipeline`", "mega", "mok has no such"]),
        ("K = 2", "K = 9", [BLOCK_1, "K=9 distinct experts"]),
        (FIRST_BLOCK, FIRST_BLOCK * 2, [BLOCK_2, "duplicate", "block 1 makes it too"]),
        (GOOD[GOOD.index("[[sweep]]") :], "", ["`sweep` is missing"]),
        ("[shape]", "[shape", ["not a TOML file", "line 2"]),
        ("[shape]", '"\\u001b[2J" = 1\n[shape]', ["unknown key `\\x1b[2J`"]),
        ("[shape]", f"{'x' * 500} = 1\n[shape]", ["unknown key `xxx", "...` (value 1)"]),
        ("imbalance = [1, 2]", f"imbalance = [{'1, ' * 10_000}]", ["multiply to 20001 cases", "20000 are the most"]),
    ],
)
def test_a_mistake_is_named_by_file_block_key_and_value(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        cases_of(tmp_path, GOOD.replace(old, new, 1) if old != FIRST_BLOCK else GOOD.replace(old, new))
    message = str(error.value)
    assert message.startswith(str(tmp_path / "mine.toml"))
    assert "\n" not in message
    assert [part for part in said if part not in message] == [], message
    assert error.value.exit_code == 2


def test_experts_that_do_not_divide_over_ranks_are_found_before_any_launch(tmp_path):
    with pytest.raises(UsageError, match="E=288 experts do not divide over ep=64"):
        cases_of(tmp_path, GOOD.replace("E = 8", "E = 288").replace("ep = [2, 4]", "ep = 64"))


def test_imbalance_8_at_ep_4_is_impossible(tmp_path):
    with pytest.raises(UsageError, match=r"ep4-.*-i8-.*imbalance 8 is outside 0\.\.4"):
        cases_of(tmp_path, GOOD.replace("ep = [2, 4]", "ep = 4").replace("[1, 2]", "8"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "no matrix named 'nope'.*gb300, h200, nvlink, quick"),
        ("./nope.toml", r"nope.toml: not there.*gb300, h200, nvlink, quick"),
        ("", "no matrix named ''"),
        ("x" * 5000 + ".toml", "not there"),
    ],
)
def test_a_matrix_that_is_not_there_names_those_that_are(name, said):
    with pytest.raises(UsageError, match=said):
        load_matrix(name)


def test_a_folder_is_no_matrix(tmp_path):
    with pytest.raises(UsageError, match="a folder, not a matrix file"):
        load_matrix(str(tmp_path))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"T", b"\x00"])
def test_bytes_that_are_no_toml(tmp_path, content):
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml: not a TOML file"):
        load_matrix(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("flags", [Flags(select=["nothing*"]), Flags(ep=[2], category=["width"])])
def test_a_selection_of_nothing_names_file_and_flags(tmp_path, flags):
    (tmp_path / "mine.toml").write_text(GOOD)
    with pytest.raises(UsageError) as error:
        select(load_matrix(str(tmp_path / "mine.toml")), flags)
    assert str(tmp_path / "mine.toml") in str(error.value)
    assert flags.spelt() in str(error.value)
