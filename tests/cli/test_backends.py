import json

import pytest
from typer.testing import CliRunner

from moebench.cli.app import app


def run(*arguments: str, columns: int = 200) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["backends", *arguments])
    assert result.exit_code == 0
    return result.stdout


def test_json_has_every_backend_with_what_it_supports_and_what_is_missing():
    found = json.loads(run("--json"))
    assert [backend["name"] for backend in found] == ["dist_moe", "mok", "torch"]
    for backend in found:
        for implementation in backend["implementations"]:
            assert list(implementation) == ["implementation", "supports", "missing"]
            assert implementation["implementation"] in ("portable", "library")
            for support in implementation["supports"]:
                assert list(support) == ["precision", "pipelines", "modes"]
    torch = found[2]["implementations"]
    assert torch == [
        {
            "implementation": "portable",
            "supports": [
                {"precision": precision, "pipelines": ["eager"], "modes": ["inference", "training"]}
                for precision in ("bf16", "mxfp8")
            ],
            "missing": None,
        }
    ]


def test_libraries_say_what_is_missing_here():
    for backend in json.loads(run("--json"))[:2]:
        (library,) = (i for i in backend["implementations"] if i["implementation"] == "library")
        assert library["missing"] is None or f"package {backend['name'].replace('_', '-')}" in library["missing"]


@pytest.mark.parametrize("columns", [80, 200])
def test_table_fits_its_terminal(columns):
    text = run(columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    for part in ("dist_moe", "mok", "torch", "portable", "library", "nothing"):
        assert part in text
