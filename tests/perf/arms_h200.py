"""How fast the arms are on one GPU, and what local objectives cost and learn: `python tests/perf/arms_h200.py`.

Each row is a fresh process that trains for a few seconds (`--each`); rows are begun until `--seconds` are used up.
`--full 200` trains both arms for 200 s each instead, and writes the report (`-o arms.json`). `--local KEY=VALUE`
changes the local arm in all rows. `--preset tiny --device cpu` tries the script without a GPU.
"""

import argparse
import fnmatch
import json
import tempfile
import time
from pathlib import Path

from moebench.arms.config import Arm, Mode, Preset, load_preset
from moebench.arms.data import Text, default_cache, prepare
from moebench.arms.results import ArmResult, Said
from moebench.arms.run import ArmsRun, Asked, begin, create_folder
from moebench.arms.traffic import block_parameters
from moebench.errors import MoebenchError
from moebench.reduce.write import write_report
from moebench.show.arms import print_arms
from moebench.show.console import make_console

ROWS: list[tuple[str, Arm, Mode, dict[str, object]]] = [
    ("e2e graphed", "e2e", "graphed", {}),
    ("local graphed", "local", "graphed", {}),
    ("e2e compiled", "e2e", "compiled", {}),
    ("local compiled", "local", "compiled", {}),
    ("e2e eager", "e2e", "eager", {}),
    ("local eager", "local", "eager", {}),
    ("local, 16 at once", "local", "graphed", {"units_at_once": 16}),
    ("local, 4 at once", "local", "graphed", {"units_at_once": 4}),
    ("local, half of positions", "local", "graphed", {"positions": 0.5}),
    ("local, 1024 classes", "local", "graphed", {"classes": 1024}),
    ("local, 4096 classes", "local", "graphed", {"classes": 4096}),
    ("local, smaller last loss", "local", "graphed", {"final_frequent": 4096, "final_sampled": 4096}),
    ("local, contrastive", "local", "graphed", {"objective": "contrastive"}),
    ("local, shared head", "local", "graphed", {"objective": "shared_head"}),
    ("local, regression", "local", "graphed", {"objective": "regression"}),
    ("local, units of 2 blocks", "local", "graphed", {"unit_blocks": 2, "units_at_once": 4}),
    ("local, whole last softmax", "local", "graphed", {"final_sampled": 0}),
]


class Quiet:
    def began(self, arm: Arm, repeat: int) -> None: ...
    def said(self, said: Said) -> None: ...
    def ended(self, result: ArmResult) -> None: ...


def mflop_per_token(preset: Preset, arm: Arm) -> float:
    """Of matrix products, forward and backward; attention counted as causal."""
    model, local = preset.model, preset.local
    attention = 2 * model.seq * model.dim
    blocks = model.n_blocks * (2 * block_parameters(model) + attention)
    heads = model.vocab
    if arm == "local":
        heads = (local.final_frequent + local.final_sampled + 1) if local.final_sampled else model.vocab
        classes = {"contrastive": 1024, "regression": 1}.get(local.objective, local.classes)
        heads += (preset.units - 1) * classes * local.positions
    return 3 * (blocks + 2 * model.dim * heads) / 1e6


def trained(preset: Preset, arm: Arm, mode: Mode, device: str, text: Text, folder: Path) -> ArmResult:
    asked = Asked(
        preset=preset, arms=[arm], repeats=1, ranks=1, device=device, mode=mode, data=None, tokenizer=None
    )  # fmt: skip
    create_folder(folder)
    begin(folder, asked)
    run = ArmsRun(folder, asked, text, Quiet())
    run.execute()
    found = getattr(run.report().arms, arm)
    assert isinstance(found, ArmResult)
    return found


def changed(preset: Preset, train: dict[str, object], local: dict[str, object]) -> Preset:
    raw = preset.model_dump()
    return Preset.model_validate(raw | {"train": raw["train"] | train, "local": raw["local"] | local})


def table(options: argparse.Namespace, preset: Preset, text: Text) -> None:
    began, last_s, base = time.monotonic(), 0.0, None
    print(f"{'':26} {'tokens/s':>10} {'x e2e':>6} {'MB':>7} {'of e2e':>6} {'loss':>7} {'steps':>6} {'tokens M':>8} "
          f"{'MFLOP/tok':>9} {'loader':>6} {'warm-up s':>9}")  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        for name, arm, mode, local in ROWS:
            if not fnmatch.fnmatch(name, options.only):
                continue
            if time.monotonic() - began + last_s > options.seconds:
                print(f"{name:26} not begun: {options.seconds:g} s are used up")
                continue
            at = time.monotonic()
            row = changed(preset, {"budget_seconds": options.each, "eval_points": 0}, local)
            try:
                result = trained(
                    row, arm, "eager" if options.device == "cpu" else mode, options.device, text, Path(scratch) / "run"
                )
            except MoebenchError as error:
                print(f"{name:26} failed: {str(error)[-600:]}", flush=True)
                continue
            last_s = time.monotonic() - at
            base = base or result
            peak, base_peak = result.peak_vram_bytes or 0, base.peak_vram_bytes or 1
            print(
                f"{name:26} {result.tokens_per_s:10,.0f} {result.tokens_per_s / base.tokens_per_s:6.2f} "
                f"{peak / 1e6:7,.0f} {peak / base_peak:6.3f} {result.final_loss or float('nan'):7.4f} "
                f"{result.steps:6} {result.tokens / 1e6:8.2f} {mflop_per_token(row, arm):9.0f} "
                f"{(result.loader_s or 0) / result.elapsed_s:6.1%} {result.warmup_s:9.1f}",
                flush=True,
            )


def full(options: argparse.Namespace, preset: Preset, text: Text) -> None:
    mode: Mode = "eager" if options.device == "cpu" else options.mode
    asked = Asked(
        preset=changed(preset, {"budget_seconds": options.full}, {}), arms=options.arms.split(","), repeats=1, ranks=1,
        device=options.device, mode=mode, data=None, tokenizer=None,
    )  # fmt: skip
    folder = options.out.absolute().with_suffix(".run")
    create_folder(folder)
    begin(folder, asked)
    run = ArmsRun(folder, asked, text, Quiet())
    run.execute()
    write_report(run.report(), options.out)
    print_arms(run.report(), make_console(width=120))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--each", type=float, default=8)
    parser.add_argument("--only", default="*", metavar="GLOB", help="rows by name")
    parser.add_argument("--full", type=float, metavar="SECONDS")
    parser.add_argument("--arms", default="e2e,local", help="with --full")
    parser.add_argument("--mode", default="graphed", help="with --full")
    parser.add_argument("-o", dest="out", type=Path, default=Path("arms.json"), help="with --full")
    parser.add_argument("--preset", default="l40s")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--local", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--train", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    given = [
        {key: _value(value) for key, _, value in (word.partition("=") for word in words)}
        for words in (options.train, options.local)
    ]
    preset = changed(load_preset(options.preset), *given)
    began = time.monotonic()
    text = prepare(preset, None, None, print, default_cache())
    print(f"text: {text.facts.train_tokens:,} tokens, {time.monotonic() - began:.1f} s; {options.preset}", flush=True)
    (full if options.full else table)(options, preset, text)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
