import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import PATH

from moebench.errors import UsageError
from moebench.reduce.load import load_report
from moebench.reduce.schema import SCHEMA_VERSION, CaseRow, Report
from moebench.reduce.write import to_json, write_report


def published() -> dict[str, Any]:
    return json.loads(PATH.read_text())


def round_trip(raw: Any) -> str:
    return json.dumps(json.loads(to_json(Report.model_validate(raw))))


def test_published_report_round_trips_with_key_order_absent_keys_and_number_types(tmp_path):
    write_report(load_report(PATH), tmp_path / "out.json")
    again = json.loads((tmp_path / "out.json").read_text())
    assert json.dumps(again) == json.dumps(published())
    assert json.dumps(again["meta"]["profiles"]["B"][5]) == "1"
    assert "schemaVersion" not in again
    assert "capacity" not in again["cases"][0]


def test_unknown_keys_keep_value_and_place_at_every_depth():
    raw = published()
    raw = {"first": [1, 1.0, None], **raw, "last": {"deep": {"er": True}}}
    raw["meta"] = {"note": "x", **raw["meta"]}
    raw["cases"][0] = {"id": raw["cases"][0]["id"], "mine": [{}], **raw["cases"][0]}
    packing = next(row for row in raw["cases"] if "capacity" in row)
    packing["capacity"] = {"zero": 0, **packing["capacity"]}
    raw["pairs"][0]["why"] = "because"
    assert round_trip(raw) == json.dumps(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(extra=st.dictionaries(st.text(min_size=1), json_values, max_size=4), cut=st.integers(0, 22))
def test_any_unknown_keys_round_trip(extra: dict[str, Any], cut: int):
    raw = published()
    row = list(raw["cases"][0].items())
    unknown = [(key, value) for key, value in extra.items() if key not in CaseRow.model_fields]
    raw["cases"] = [dict([*row[:cut], *unknown, *row[cut:]])]
    assert round_trip(raw) == json.dumps(raw)


def test_numbers_that_json_cannot_hold_are_written_as_null():
    report = Report.model_validate(published())
    row = report.cases[0].model_copy(update={"environment": {"power": float("nan"), "clocks": [float("inf"), 1]}})
    written = json.loads(to_json(report.model_copy(update={"cases": [row]})), parse_constant=pytest.fail)
    assert written["cases"][0]["environment"] == {"power": None, "clocks": [None, 1]}


def test_json_schema_has_the_published_key_names_and_ours():
    schema = Report.model_json_schema()
    assert set(published()) | {"schemaVersion", "rejected", "comparisons", "floors"} == set(schema["properties"])
    row = schema["$defs"]["CaseRow"]["properties"]
    assert list(row)[:23] == [*published()["cases"][0], "capacity"]
    ours = "implementation trafficSource memorySource windowMS validation routing shape environment"
    assert set(ours.split()) <= set(row)
    assert row["iterationMS"]["minimum"] > 0


def broken(change) -> str:
    raw = published()
    change(raw)
    return json.dumps(raw)


def set_in_case(key: str, value: Any) -> str:
    return broken(lambda raw: raw["cases"][3].__setitem__(key, value))


BAD_REPORTS = {
    "empty": ("", ["the file is empty", "moebench reduce"]),
    "blank": (" \n", ["the file is empty"]),
    "truncated": (PATH.read_text()[:5000], ["truncated JSON", "line 209"]),
    "truncated string": ('{"meta": {"cuda": "13', ["truncated JSON"]),
    "not json": ("{meta: 1}", ["not JSON", "line 1, column 2"]),
    "not utf-8": (b"\xff\xfe{}", ["not UTF-8"]),
    "a list": ("[1, 2]", ["a report is a JSON object, this is [1, 2]"]),
    "a number": ("7", ["a report is a JSON object, this is 7"]),
    "nothing in it": ("{}", ["the key `meta` is missing"]),
    "newer": (
        json.dumps({"schemaVersion": SCHEMA_VERSION + 1}),
        [f"`schemaVersion`, value {SCHEMA_VERSION + 1}", "newer", "Upgrade"],
    ),
    "version of a wrong type": ('{"schemaVersion": "1"}', ["`schemaVersion`", '"1"', "integer"]),
    "NaN": (set_in_case("meanTXGBps", float("nan")), ["`cases[3].meanTXGBps`", "nan", "null"]),
    "infinity in an unknown key": (set_in_case("mine", [{"x": float("-inf")}]), ["`cases[3].mine[0].x`", "-inf"]),
    "overflowing number": (PATH.read_text().replace("0.7512", "1e999", 1), ["inf"]),
    "text for a number": (set_in_case("iterationMS", "1.5"), ["`cases[3].iterationMS`", '"1.5"', "a number"]),
    "true for a number": (set_in_case("imbalance", True), ["`cases[3].imbalance`", "true", "a number"]),
    "time of zero": (set_in_case("iterationMS", 0.0), ["`cases[3].iterationMS`", "0.0", "above 0"]),
    "float for a count": (set_in_case("ep", 16.5), ["`cases[3].ep`", "16.5", "integer"]),
    "null for an id": (set_in_case("id", None), ["`cases[3].id`", "null", "string"]),
    "meta of a wrong type": (broken(lambda raw: raw.update(meta=[])), ["`meta`", "[]"]),
    "cases of a wrong type": (broken(lambda raw: raw.update(cases={})), ["`cases`", "{}"]),
    "a case of a wrong type": (broken(lambda raw: raw["cases"].insert(0, 5)), ["`cases[0]`", "value 5"]),
    "missing key of a case": (broken(lambda raw: raw["cases"][0].pop("backend")), ["`cases[0].backend`", "missing"]),
    "duplicate id": (
        broken(lambda raw: raw["cases"].append(raw["cases"][0])),
        ["mok-inference-ep16-bf16-native-single_layer-i1-F3072", "duplicate"],
    ),
    "id both accepted and rejected": (
        broken(lambda raw: raw.update(rejected=[{"id": raw["cases"][0]["id"], "status": "failed"}])),
        ["duplicate", "`rejected`"],
    ),
    "unknown status": (
        broken(lambda raw: raw.update(rejected=[{"id": "x", "status": "odd"}])),
        ["`rejected[0].status`", '"odd"', "'failed'"],
    ),
    "control characters in a key and an id": (
        broken(lambda raw: raw["cases"].append({**raw["cases"][0], "id": "\x1b[2J", "ep": None})),
        ["of \\x1b[2J", "null"],
    ),
    "too deep": ("[" * 100_000, ["bad.json"]),
    "deep": ('{"meta": ' + "[" * 990 + "]" * 990 + "}", ["bad.json"]),
}


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_bad_report_is_a_usage_error_naming_file_key_value_and_remedy(name: str, tmp_path):
    content, parts = BAD_REPORTS[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as raised:
        load_report(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert message.isprintable()
    for part in parts:
        assert part in message


def test_missing_file_and_folder_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_report(tmp_path / "none.json")
    with pytest.raises(UsageError, match="is a folder"):
        load_report(tmp_path)


def test_report_with_byte_order_mark_loads(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + PATH.read_bytes())
    assert len(load_report(path).cases) == 55
