"""One arms run: arms alternate, each trains in a fresh process (torchrun over ranks), results are kept in a folder."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.arms.config import Arm, Mode, Preset
from moebench.arms.data import Text
from moebench.arms.report import ArmsReport, make_report
from moebench.arms.results import ArmOrder, ArmResult, Failure, Said
from moebench.errors import MoebenchError, UsageError
from moebench.launch import torchrun
from moebench.launch.leftovers import end_leftovers
from moebench.launch.logs import tail
from moebench.rank.trace import write_atomically

ASKED, LOCK = "asked.json", "lock"
POLL_S = 0.1
TERM_S = 10.0
STALLED_S = 1800.0
"""Without a word from an arm, which compiles for minutes at most and speaks several times a second when it trains."""


class Asked(BaseModel):
    """What the command line asked for; recorded in the run folder for --resume."""

    model_config = ConfigDict(extra="forbid")
    preset: Preset
    arms: list[Arm]
    repeats: int
    ranks: int
    device: str
    mode: Mode
    data: list[Path] | None
    tokenizer: Path | None


class Watcher(Protocol):
    """Who is told what happens, such as a terminal."""

    def began(self, arm: Arm, repeat: int) -> None: ...
    def said(self, said: Said) -> None: ...
    def ended(self, result: ArmResult) -> None: ...


class ArmsRun:
    """Trains what has no result yet. Must run in the main thread: processes die with the thread that started them."""

    def __init__(self, folder: Path, asked: Asked, text: Text, watcher: Watcher) -> None:
        self.folder, self.asked, self.text, self.watcher = folder, asked, text, watcher
        self.stopping: str | None = None
        self._results: dict[int, list[ArmResult]] = {}
        self._stop_file = folder / "stop"
        self._stop_file.unlink(missing_ok=True)

    def stop(self, why: str) -> None:
        """End the arm that trains, with what it has learnt, and begin no other."""
        self.stopping = self.stopping or why
        write_atomically(self._stop_file, why)

    def execute(self) -> None:
        """Train. Leaves no process behind. Raises MoebenchError where an arm could not be trained; what others gave is
        kept and in the report."""
        for repeat, arm in self._plan():
            done = self._kept(repeat, arm)
            if done is None:
                if self.stopping is not None:
                    return
                self.watcher.began(arm, repeat)
                done = self._train(repeat, arm)
                self.watcher.ended(done)
            self._results.setdefault(repeat, []).append(done)

    def report(self, failed: str | None = None) -> ArmsReport:
        """Of what there is; `failed`: why something is missing."""
        asked = self.asked
        results = [self._results[repeat] for repeat in sorted(self._results)]
        bad = [f"{r.arm}: {r.message}" for repeat in results for r in repeat if r.status != "completed"]
        partial = "; ".join(filter(None, [failed or self.stopping, *bad])) or None
        return make_report(asked.preset, asked.mode, asked.ranks, asked.device, self.text.facts, results, partial)

    def _plan(self) -> Iterator[tuple[int, Arm]]:
        """The order of arms turns round from one repeat to the next, so that what drifts hits both alike."""
        for repeat in range(self.asked.repeats):
            for arm in self.asked.arms if repeat % 2 == 0 else reversed(self.asked.arms):
                yield repeat, arm

    def _folder(self, repeat: int, arm: Arm) -> Path:
        return self.folder / f"{repeat + 1}-{arm}"

    def _kept(self, repeat: int, arm: Arm) -> ArmResult | None:
        """A result of before that is final."""
        try:
            text = (self._folder(repeat, arm) / "result.json").read_bytes()
            result = ArmResult.model_validate_json(text)
        except (OSError, ValidationError):
            return None
        return None if result.status == "interrupted" else result

    def _train(self, repeat: int, arm: Arm) -> ArmResult:
        folder = self._folder(repeat, arm)
        order = ArmOrder(
            arm=arm,
            preset=self.asked.preset,
            ranks=self.asked.ranks,
            device=self.asked.device,
            mode=self.asked.mode,
            text=self.text.folder.absolute(),
            folder=folder,
            stop_file=self._stop_file,
        )
        for path in (order.result_path, order.error_path, order.progress_path):
            path.unlink(missing_ok=True)
        write_atomically(folder / "order.json", order.model_dump_json(indent=1))
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                self._command(folder),
                env=torchrun.environment(self.asked.ranks, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._follow(process, order)
            finally:
                _end(process)
                end_leftovers(self.folder)
        if process.returncode != 0 or not order.result_path.exists():
            raise _failure(order, process.returncode)
        result = ArmResult.model_validate_json(order.result_path.read_bytes())
        if result.status == "completed":
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        return result

    def _command(self, folder: Path) -> list[str]:
        module, order = "moebench.arms", folder / "order.json"
        if self.asked.ranks == 1:
            return [sys.executable, "-m", module, str(order)]
        return torchrun.command(self.asked.ranks, folder, folder.name, module, order)

    def _follow(self, process: "subprocess.Popen[bytes]", order: ArmOrder) -> None:
        offset, heard_at = 0, time.monotonic()
        while True:
            ended = process.poll() is not None
            before, offset = offset, self._tell(order.progress_path, offset)
            if ended:
                return
            if offset != before:
                heard_at = time.monotonic()
            if time.monotonic() - heard_at > STALLED_S:
                raise MoebenchError(f"the {order.arm} arm said nothing for {STALLED_S:g} s, and was ended")
            time.sleep(POLL_S)

    def _tell(self, path: Path, offset: int) -> int:
        """Pass on the lines that have come; a line that a full disk cut short is passed over."""
        try:
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
        except OSError:
            return offset
        whole, newline, _ = text.rpartition(b"\n")
        for line in whole.split(b"\n") if whole else []:
            with contextlib.suppress(ValidationError):
                self.watcher.said(Said.model_validate_json(line))
        return offset + len(whole) + len(newline)


def create_folder(folder: Path) -> None:
    """The run folder, if it is not there. Raises UsageError where something else is, or it cannot be made."""
    try:
        folder.mkdir(exist_ok=True)
        ours = (folder / ASKED).is_file() or {path.name for path in folder.iterdir()} <= {LOCK}
    except FileExistsError:
        ours = False
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}. Give another place with -o FILE.") from error
    if not ours:
        raise UsageError(f"{folder}: is there, and no arms run made it. Give another report with -o FILE.")


def begin(folder: Path, asked: Asked) -> None:
    """Forget what an earlier run left in the folder, which is locked. Raises UsageError where it cannot be written."""
    try:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        write_atomically(folder / ASKED, asked.model_dump_json(indent=1))
    except OSError as error:
        raise UsageError(
            f"{folder}: the run folder cannot be written: {error.strerror}. Give another place with -o FILE."
        ) from error


def load_asked(folder: Path) -> Asked:
    """What an earlier run was asked for. Raises UsageError where there was none."""
    try:
        return Asked.model_validate_json((folder / ASKED).read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"--resume: {folder} is no folder of an arms run. Run without --resume first.") from error


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _failure(order: ArmOrder, status: int | None) -> MoebenchError:
    """Of an arm whose process gave no result: its own words, or the end of its log."""
    try:
        said = Failure.model_validate_json(order.error_path.read_bytes())
    except (OSError, ValidationError):
        logs = sorted(order.folder.glob("ranks/*/attempt_0/*/stderr.log"), key=os.path.getmtime)
        words = next((text for path in (order.folder / "log.txt", *logs) if (text := tail(path))), "it said nothing")
        return MoebenchError(f"the {order.arm} arm ended with status {status}: {words}")
    error = UsageError if said.exit_code == UsageError.exit_code else MoebenchError
    return error(said.message)
