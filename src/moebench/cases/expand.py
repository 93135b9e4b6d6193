"""Blocks of a matrix multiplied into cases, and the flags that narrow or replace its axes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from itertools import product
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from moebench.cases.case import (
    PIPELINES,
    SHAPE_AXES,
    Capacity,
    Case,
    Category,
    Implementation,
    Measure,
    Mode,
    Pipeline,
    Precision,
    report_order,
)
from moebench.cases.matrix import Block, Matrix, explain
from moebench.cases.routing import rows_per_expert
from moebench.cases.shape import Shape
from moebench.errors import UsageError

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Flags:
    """What the command line asked for. An empty list leaves an axis as the matrix has it."""

    backend: list[str] = field(default_factory=list)
    mode: list[Mode] = field(default_factory=list)
    ep: list[int] = field(default_factory=list)
    precision: list[Precision] = field(default_factory=list)
    pipeline: list[Pipeline] = field(default_factory=list)
    category: list[Category] = field(default_factory=list)
    imbalance: list[float] = field(default_factory=list)
    F: list[int] = field(default_factory=list)
    shape: dict[str, int] = field(default_factory=dict)
    select: list[str] = field(default_factory=list)
    implementation: Implementation = Implementation.PORTABLE

    def spelt(self) -> str:
        """The flags as on a command line, for messages."""
        names = {"F": "--ffn", "select": "-k"}
        axes = [f.name for f in fields(self) if f.name not in ("shape", "implementation") and getattr(self, f.name)]
        words = [f"{names.get(a, '--' + a)} {','.join(f'{v}' for v in getattr(self, a))}" for a in axes]
        return " ".join(words + [f"{axis}={size}" for axis, size in self.shape.items()])


@dataclass(frozen=True)
class Selection:
    """The cases of a matrix after the flags, in report order; `notes` says which axes were replaced."""

    matrix: Matrix
    cases: list[Case]
    notes: list[str]


BACKENDS_GROUP = "moebench.backends"
"""Entry points under which packages register their backends."""

HIDDEN_BACKENDS = {"faulty": PIPELINES["torch"], "spin": PIPELINES["torch"]}
"""May be named, and are listed nowhere: for tests of moebench itself."""

LIBRARY_BACKENDS = ("dist_moe", "mok")
"""Backends that are re-creations of a library, which may be measured in their place."""

LIBRARY_ONLY = "nvfp4 is computed by the real dist_moe only: --implementation library"

REPLACEABLE = ("backend", "ep", "precision", "imbalance", "F")
"""Open axes: a flag may bring values that the matrix does not have. The others are closed sets."""


def known_backends() -> list[str]:
    """Backends that a matrix or a flag can name; any other is given as package.module:Class."""
    registered = {point.name for point in entry_points(group=BACKENDS_GROUP)}
    return sorted(registered | set(PIPELINES))


def resolve_backend(text: str) -> tuple[str, dict[Precision, tuple[Pipeline, ...]]]:
    """Name and pipelines of a backend given by name or as package.module:Class, which is imported.

    Raises UsageError where there is none.
    """
    ours = PIPELINES | HIDDEN_BACKENDS
    if text in ours:
        return text, ours[text]
    if ":" not in text and text not in known_backends():
        raise UsageError(
            f"there is no backend named {text!r}. Known: {', '.join(known_backends())}; "
            "a class of your own is named as package.module:Class."
        )
    from moebench.backends.registry import load_backend

    loaded = load_backend(text)
    return loaded.name, dict(loaded.pipelines)


def select(matrix: Matrix, flags: Flags | None = None) -> Selection:
    """Expand a matrix and apply the flags.

    A flag narrows its axis. If a listed value of an open axis is in no case of the matrix, the axis is
    replaced in every block by the listed values; duplicates so made merge. `--imbalance` leaves packing out.
    Raises UsageError for a matrix that contradicts itself, and when nothing is left.
    """
    flags = flags or Flags()
    own = _expand(matrix, matrix.sweep, strict=True)
    notes = []
    changed: dict[str, list[Any]] = {}
    for axis in REPLACEABLE:
        asked = getattr(flags, axis)
        present = {_value(case, axis) for case in own if not (axis == "imbalance" and _is_packing(case))}
        if asked and not set(asked) <= present:
            changed[axis] = asked
            new = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in asked)
            notes.append(f"{axis} replaced by {new} in every block: {matrix.name} has no such case")
    if flags.shape:
        notes.append("shape set to " + " ".join(f"{axis}={n}" for axis, n in flags.shape.items()))
    cases = own
    if changed or flags.shape:
        blocks = [_replaced(block, changed, flags.shape) for block in matrix.sweep]
        cases = _expand(matrix, blocks, strict=False)
    cases = [case for case in cases if _wanted(case, flags)]
    if flags.implementation is Implementation.LIBRARY:
        notes.append("dist_moe and mok are the real libraries")
        cases = [_with_library(case) for case in cases]
    else:
        cases = [_re_created(case) for case in cases]
    if not cases:
        raise UsageError(
            f"{matrix.path}: no case is left with {flags.spelt()}. Without these flags, `moebench cases` "
            "lists what the matrix has."
        )
    return Selection(matrix, sorted(cases, key=report_order), notes)


def _with_library(case: Case) -> Case:
    """The case done by the real library, if its backend has one."""
    if case.backend not in LIBRARY_BACKENDS:
        return case
    return case.model_copy(update={"implementation": Implementation.LIBRARY})


def _re_created(case: Case) -> Case:
    """The case done by our own re-creation of the library, which has no nvfp4."""
    if case.backend not in LIBRARY_BACKENDS or case.precision is not Precision.NVFP4:
        return case
    return case.model_copy(update={"unsupported": case.unsupported or LIBRARY_ONLY})


def _value(case: Case, axis: str) -> Any:
    if axis == "backend":
        return case.backend_path or case.backend
    return case.shape.F if axis == "F" else getattr(case, axis)


def _is_packing(case: Case) -> bool:
    return case.category is Category.PACKING


def _wanted(case: Case, flags: Flags) -> bool:
    for axis in ("backend", "mode", "ep", "precision", "pipeline", "category", "F"):
        asked = getattr(flags, axis)
        if asked and _value(case, axis) not in asked:
            return False
    if flags.imbalance and (_is_packing(case) or case.imbalance not in flags.imbalance):
        return False
    return not flags.select or any(fnmatchcase(case.id, pattern) for pattern in flags.select)


def _replaced(block: Block, changed: dict[str, list[Any]], shape: dict[str, int]) -> Block:
    update: dict[str, Any] = dict(changed)
    if block.category is Category.PACKING:
        update.pop("imbalance", None)
    if "backend" in changed or "precision" in changed:
        update["pipeline"] = None
    if shape:
        update["shape"] = block.shape.model_copy(update=shape)
    return block.model_copy(update=update)


def _expand(matrix: Matrix, blocks: list[Block], *, strict: bool) -> list[Case]:
    """Cases of all blocks. Strict, for the file's own blocks: a duplicate or impossible case is an error."""
    cases: dict[str, tuple[int, Case]] = {}
    for number, block in enumerate(blocks, 1):
        where = f"{matrix.path}: [[sweep]] block {number}"
        if strict:
            _check_pipelines(block, where)
        for case in _expand_block(matrix, block, where):
            if strict and case.unsupported:
                raise UsageError(f"{where}: {case.id} is impossible: {case.unsupported}. Take it out of the block.")
            if strict and case.id in cases:
                first = cases[case.id][0]
                raise UsageError(
                    f"{where}: {case.id} is a duplicate: block {first} makes it too. Take one of them out."
                )
            cases.setdefault(case.id, (number, case))
    return [case for _, case in cases.values()]


def _expand_block(matrix: Matrix, block: Block, where: str) -> Iterator[Case]:
    measure = _merged(Measure, matrix.measure, block.measure, f"{where}, measure")
    capacity = _merged(Capacity, matrix.capacity, block.capacity, f"{where}, capacity")
    for variant, shape in product(_variants(matrix, block, where), _shapes(matrix, block, where)):
        for backend, mode, ep, precision in product(block.backend, block.mode, block.ep, block.precision):
            name, pipelines = _backend(block, backend, precision, where)
            for pipeline in pipelines:
                yield Case(
                    backend=name,
                    backend_path=backend if ":" in backend else None,
                    mode=mode,
                    ep=ep,
                    precision=precision,
                    pipeline=pipeline,
                    category=block.category,
                    shape=shape,
                    overridden=tuple(a for a in SHAPE_AXES if getattr(shape, a) != getattr(matrix.shape, a)),
                    measure=measure,
                    capacity=capacity,
                    unsupported=_impossible(shape, ep, precision, mode, variant["layer_imbalances"]),
                    **variant,
                )


def _backend(block: Block, backend: str, precision: Precision, where: str) -> tuple[str, list[Pipeline]]:
    """Name of a block's backend, and those of its pipelines that the block wants."""
    try:
        name, known = resolve_backend(backend)
    except UsageError as error:
        raise UsageError(f"{where}: key `backend`: {error}") from error
    pipelines = known.get(precision, ())
    return name, [pipeline for pipeline in pipelines if block.pipeline is None or pipeline in block.pipeline]


def _check_pipelines(block: Block, where: str) -> None:
    """Every backend of the file's own block must have one of its pipelines, and every pipeline a backend."""
    unused = set(block.pipeline or [])
    for backend in block.backend:
        used = {p for precision in block.precision for p in _backend(block, backend, precision, where)[1]}
        if not used:
            asked = ", ".join(block.pipeline or [])
            precisions = ", ".join(block.precision)
            raise UsageError(f"{where}: key `pipeline`, value {asked}: {backend} has no such pipeline in {precisions}.")
        unused -= used
    if unused:
        raise UsageError(f"{where}: key `pipeline`, value {', '.join(sorted(unused))}: no backend of the block has it.")


def _variants(matrix: Matrix, block: Block, where: str) -> list[dict[str, Any]]:
    if block.category is not Category.PACKING:
        if block.profile is not None:
            raise UsageError(f"{where}: key `profile` belongs to packing, not to {block.category}.")
        return [{"imbalance": float(i), "layer_imbalances": (float(i),)} for i in block.imbalance or [1.0]]
    if block.imbalance is not None:
        raise UsageError(f"{where}: key `imbalance` has no meaning in packing: its layers follow `profile`.")
    if block.profile is None:
        raise UsageError(f"{where}: packing needs the key `profile`, a list of names from [profiles].")
    for letter in block.profile:
        if letter not in matrix.profiles:
            known = ", ".join(sorted(matrix.profiles)) or "none"
            raise UsageError(f"{where}: key `profile`, value {letter!r}: not in [profiles] (which has {known}).")
    return [
        {"imbalance": 1.0, "profile": letter, "layer_imbalances": tuple(map(float, matrix.profiles[letter]))}
        for letter in block.profile
    ]


def _shapes(matrix: Matrix, block: Block, where: str) -> list[Shape]:
    try:
        base = block.shape.onto(matrix.shape)
        return [Shape.model_validate(base.model_dump() | {"F": F}) for F in block.F or [base.F]]
    except ValidationError as error:
        raise UsageError(f"{where}, shape: {explain(error, Shape)}") from error


def _merged(model: type[M], base: M, override: dict[str, Any], where: str) -> M:
    try:
        return model.model_validate(base.model_dump() | override)
    except ValidationError as error:
        raise UsageError(f"{where}: {explain(error, model)}") from error


_GRANULES = {
    Precision.BF16: (8, "grouped GEMMs"),
    Precision.MXFP8: (32, "mxfp8 scale blocks"),
    Precision.NVFP4: (16, "nvfp4 scale blocks"),
}


def _impossible(shape: Shape, ep: int, precision: Precision, mode: Mode, imbalances: tuple[float, ...]) -> str | None:
    if precision is Precision.NVFP4 and mode is Mode.TRAINING:
        return "nvfp4 is for inference only"
    granule, needs = _GRANULES[precision]
    for axis, width in (("D", shape.D), ("F", shape.F)):
        if width % granule:
            return f"{axis}={width} is not a multiple of {granule}, as {needs} need"
    for layer, imbalance in enumerate(imbalances):
        try:
            rows_per_expert(shape.T, shape.K, shape.E, ep, imbalance)
        except ValueError as error:
            return f"layer {layer}: {error}" if len(imbalances) > 1 else str(error)
    return None
