"""The shipped conformance matrix, run as a user runs it: every backend, mode and precision, on odd shapes."""

import json
import re
from fnmatch import fnmatchcase

import pytest
from tests.e2e.sweeping import moebench, report, traces

pytestmark = pytest.mark.e2e

CHOSEN = [
    *("*-ep1-*", "*-ep2-*-i0-*", "*-ep2-*-i2-F32", "*-ep2-*-T1", "*-ep2-*-K8", "*-ep2-*-width-*", "*-ep2-*-packing-*"),
    *("*-ep4-*-i0-*", "*-ep4-*-E32-K1", "*-ep4-*-packing-*"),
]
"""All that is odd at 2 ranks; at 4 an empty rank, more experts than ranks squared, chained layers."""
FLAGS = ["--matrix", "conformance", *(flag for glob in CHOSEN for flag in ("-k", glob))]
D = 64


@pytest.fixture(scope="session")
def conformance(tmp_path_factory):
    """The folder in which the sweep ran, and how it ended."""
    folder = tmp_path_factory.mktemp("conformance")
    return folder, moebench("sweep", *FLAGS, folder=folder, seconds=400)


@pytest.fixture(scope="session")
def run(conformance):
    return (conformance[0] / "runs" / "latest").resolve()


@pytest.fixture(scope="session")
def rows(conformance, run):
    return {row["id"]: row for row in report(run)["cases"]}


@pytest.fixture(scope="session")
def plans(conformance):
    ended = moebench("plan", *FLAGS, "--json", folder=conformance[0])
    return {plan["id"]: plan for plan in json.loads(ended.stdout)}


def test_every_case_is_accepted(conformance, run, plans):
    ended = conformance[1]
    assert report(run)["rejected"] == []
    assert (ended.code, ended.stderr) == (0, "")
    assert set(plans) == {row["id"] for row in report(run)["cases"]}


def test_the_selection_has_every_backend_mode_precision_and_oddity(rows):
    for axes in (
        [(b, m, p, e) for b in BACKENDS for m in MODES for p in ("bf16", "mxfp8") for e in ("ep1", "ep2", "ep4")],
        [("mega", m, e) for m in MODES for e in ("ep1", "ep2", "ep4")],
    ):
        for wanted in axes:
            assert any(set(wanted) <= set(id.split("-")) for id in rows), wanted
    for oddity in ("*-ep2-*-T1", "*-ep2-*-width-*-F96", "*-ep2-*-K8", "*-ep4-*-E32-K1", "*-ep2-*-i0-*", "*-packing-*"):
        assert any(fnmatchcase(id, oddity) for id in rows), oddity


BACKENDS, MODES = ("torch", "dist_moe", "mok"), ("inference", "training")


def test_stdout_has_one_line_a_case_and_ends_with_pairs_and_the_report(conformance, rows):
    lines = conformance[1].lines
    numbered = [line for line in lines if re.match(rf" *\d+/{len(rows)} accepted ", line)]
    assert len(numbered) == len(rows)
    assert {line.split()[2] for line in numbered} == set(rows)
    assert re.match(rf"{len(rows)} cases in 3 launches, about .*; run folder +runs/", " ".join(lines[:2]))
    assert "dist_moe faster by: mok ms / dist_moe ms" in conformance[1].stdout
    assert lines[-2] == f"{len(rows)} of {len(rows)} planned cases accepted"
    assert lines[-1].startswith("Report: runs/")
    assert "\x1b" not in conformance[1].stdout


def test_every_mok_case_has_its_pair(run, rows):
    found = report(run)
    mok = sorted(id for id in rows if id.startswith("mok-"))
    assert [pair["mok"] for pair in found["pairs"]] == mok
    assert found["meta"]["matchedWorkloads"] == len(mok)
    dist_moe = [id for id in rows if id.startswith("dist_moe-")]
    assert len(found["allPipelinePairs"]) == len(dist_moe)
    assert found["meta"]["acceptedExecutions"] == len(rows)
    assert found["meta"]["rankTraces"] == sum(row["ep"] for row in rows.values())


def test_packing_did_what_plan_said(rows, plans):
    packing = [id for id in rows if "-packing-" in id and not id.startswith("torch-")]
    assert len(packing) == 2 * 2 * 5
    for id in packing:
        planned = dict(plans[id]["capacity"])
        if "sourcePolicyDerived" in planned:
            planned["sourcePolicyDerived"] = False
        assert rows[id]["capacity"] == planned, id


def test_packing_recomputes_and_replays(rows):
    """The matrix would prove nothing if its budgets held everything."""
    training = {id: row["capacity"] for id, row in rows.items() if "-training-" in id and "-packing-" in id}
    assert any(0 < c["capacityRecomputeFlags"] < c["inspectedRankLayers"] for c in map(dict, _of(training, "dist_moe")))
    assert all(c["totalReplayRows"] > 0 for c in _of(training, "mok"))


def _of(capacities, backend):
    return [capacity for id, capacity in capacities.items() if id.startswith(backend + "-")]


def test_counted_bytes_are_the_exact_rows_times_bytes_a_row(run, rows):
    """BF16 rows everywhere, but for dist_moe's quantised dispatch in mxfp8 inference; mok's scores add 8 bytes.

    What a rank sends in a dispatch it receives in the combine, and the other way round.
    """
    for id, row in rows.items():
        sent_row, returned_row = bytes_a_row(row)
        for trace in traces(run, id):
            sent, returned = remote_rows(trace)
            wanted = {kind: sent * size for kind, size in sent_row.items()}
            wanted |= {kind: returned * size for kind, size in returned_row.items()}
            counted = {k: b for k, b in trace["tx_bytes_by_kind"].items() if k not in ("metadata", "replay")}
            assert counted == wanted, id


def bytes_a_row(row):
    """Bytes by kind of a row that a rank sends to an expert, and of a row that it returns."""
    quantised = row["backend"] == "dist_moe" and row["precision"] == "mxfp8" and row["mode"] == "inference"
    sent, returned = {"dispatch": D + D // 32 if quantised else 2 * D}, {"combine": 2 * D}
    if row["mode"] == "training":
        sent["backward dispatch"] = returned["backward combine"] = 2 * D
        if row["backend"] == "mok":
            sent["router weights"] = returned["router gradients"] = 4
    return sent, returned


def remote_rows(trace):
    """Rows that the rank sends to other ranks' experts, and rows that it returns to other ranks."""
    shape, layers = trace["case"]["shape"], len(trace["case"]["layer_imbalances"])
    sent = sum(trace["realised"]["remote_rows_sent"])
    kept = layers * shape["T"] * shape["K"] - sent
    return sent, sum(trace["realised"]["rows_received"]) - kept


def test_report_repeats_the_counted_bytes_beside_the_formula(run, rows):
    """Counted over logical bytes is exactly counted over logical rows, whatever the backend."""
    for id, row in rows.items():
        by_kind = row["txBytesByKind"]
        extra = by_kind.get("metadata", 0) + by_kind.get("replay", 0)
        assert row["replayTXBytes"] == by_kind.get("replay", 0)
        if row["ep"] == 1:
            assert set(by_kind.values()) <= {0}
            assert (row["logicalTXBytes"], row["meanTXGBps"]) == (0, None)
            continue
        shape = traces(run, id)[0]["case"]["shape"]
        logical_rows = row["layers"] * shape["T"] * shape["K"] * (row["ep"] - 1)
        ratio = row["routing"]["remoteRowsSent"] / logical_rows
        assert sum(by_kind.values()) - extra == pytest.approx(ratio * row["logicalTXBytes"], rel=1e-12), id
        assert 0.6 < ratio < 1.4, id


def test_backends_were_given_the_same_routing(rows):
    hashes = {}
    for row in rows.values():
        work = (row["ep"], row["imbalance"], row["profile"], str(row.get("shape")))
        hashes.setdefault(work, set()).add(row["routing"]["sha256"])
    assert all(len(found) == 1 for found in hashes.values())
    assert len(set.union(*hashes.values())) == len(hashes)


def test_reducing_again_gives_the_same_bytes(conformance, run):
    written = (run / "report.json").read_bytes()
    ended = moebench("reduce", run, "-o", "again.json", folder=conformance[0])
    assert ended.code == 0
    assert (conformance[0] / "again.json").read_bytes() == written


def test_pair_and_show_read_the_run_folder(conformance, run):
    folder = conformance[0]
    found = report(run)
    pairs = json.loads(moebench("pair", run, "--json", folder=folder).stdout)
    assert pairs == {"pairs": found["pairs"], "allPipelinePairs": found["allPipelinePairs"]}
    assert json.loads(moebench("show", "--json", folder=folder).stdout) == found
    shown = moebench("show", run, folder=folder, COLUMNS="120")
    assert (shown.code, shown.stderr) == (0, "")
    assert "portable" in shown.stdout


def test_latest_is_a_relative_link(conformance):
    latest = conformance[0] / "runs" / "latest"
    assert latest.is_symlink()
    assert not latest.readlink().is_absolute()
