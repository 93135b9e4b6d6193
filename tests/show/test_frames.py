import subprocess
import sys

import pytest
from tests.reference import PATH
from tests.show.build import report, sweep

import moebench
from moebench.show.frames import CASE_DTYPES, PAIR_DTYPES


def dtypes(frame) -> dict[str, str]:
    return {column: str(dtype) for column, dtype in frame.dtypes.items()}


def test_cases_frame_has_a_typed_row_for_each_case():
    frame = moebench.cases_frame(moebench.load_report(PATH))
    assert dtypes(frame) == CASE_DTYPES
    first = frame.iloc[0]
    assert first["id"] == "mok-inference-ep16-bf16-native-single_layer-i1-F3072"
    assert first["workload"] == "inference-ep16-bf16-single_layer-i1-F3072"
    assert first["iterationMS"] == 1.6715509176254273
    assert first["tokensPerSPerGPU"] == pytest.approx(2048 / 1.6715509176254273e-3)
    assert len(frame) == 55
    assert frame["backwardMS"].isna().sum() == 30
    assert frame["peakReservedBytes"].max() == 105795026944


def test_pairs_frame_has_a_typed_row_for_each_pair():
    frame = moebench.pairs_frame(moebench.load_report(PATH))
    assert dtypes(frame) == PAIR_DTYPES
    assert len(frame) == 22
    assert frame["distPipelines"].sum() == 33
    assert frame["distFasterBy"].iloc[0] == pytest.approx(1.108631, abs=1e-6)
    assert frame["distVsTorch"].isna().all()


def test_frames_tell_the_distance_to_torch():
    assert moebench.pairs_frame(sweep())["mokVsTorch"].tolist() == [1.6, 1.6]
    vs_torch = moebench.cases_frame(sweep())["vsTorch"]
    assert vs_torch.dropna().tolist() == pytest.approx([4 / 3, 2.0, 1.6] * 2)


def test_frames_of_an_empty_report_have_the_same_columns_and_types():
    assert dtypes(moebench.cases_frame(report())) == CASE_DTYPES
    assert dtypes(moebench.pairs_frame(report())) == PAIR_DTYPES


def test_own_shape_of_a_case_is_in_the_frame():
    from tests.show.build import row

    frame = moebench.cases_frame(report(row("mok", 2.0, shape={"T": 8})))
    assert frame[["T", "D", "tokensPerSPerGPU"]].iloc[0].tolist() == [8, 128, 4000.0]


def test_importing_moebench_imports_neither_torch_nor_pandas():
    code = "import moebench, sys; assert not {'torch', 'pandas', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
