"""The options that choose cases, shared by every command that takes a matrix."""

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from moebench.errors import UsageError

if TYPE_CHECKING:
    from moebench.cases.expand import Selection
    from moebench.cases.shape import Shape

Member = TypeVar("Member", bound=StrEnum)
Number = TypeVar("Number", int, float)

_CASES, _SHAPE = "Which cases (flags repeat, and take lists such as 8,16)", "Shape"


def _many(*names: str, help: str, metavar: str, panel: str = _CASES) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


def _selection(
    matrix: Annotated[
        str,
        _many("--matrix", "-m", help="A matrix by name, or the path of a TOML file.", metavar="NAME|PATH"),
    ] = "quick",
    backend: Annotated[
        list[str] | None, _many("--backend", help="torch, dist_moe, mok, or package.module:Class.", metavar="NAME")
    ] = None,
    mode: Annotated[list[str] | None, _many("--mode", help="inference or training.", metavar="MODE")] = None,
    ep: Annotated[list[str] | None, _many("--ep", help="Expert-parallel ranks.", metavar="N")] = None,
    precision: Annotated[
        list[str] | None, _many("--precision", help="bf16, mxfp8, or nvfp4 (library only).", metavar="NAME")
    ] = None,
    pipeline: Annotated[
        list[str] | None,
        _many("--pipeline", help="eager, native, standard, staged or mega.", metavar="NAME"),
    ] = None,
    category: Annotated[
        list[str] | None, _many("--category", help="single_layer, width or packing.", metavar="NAME")
    ] = None,
    imbalance: Annotated[
        list[str] | None,
        _many("--imbalance", help="Rows of rank 0 over an even share. Packing is left out.", metavar="X"),
    ] = None,
    implementation: Annotated[
        str,
        _many("--implementation", help="portable or library: who stands for dist_moe and mok.", metavar="NAME"),
    ] = "portable",
    select: Annotated[list[str] | None, _many("-k", help="Cases whose id matches.", metavar="GLOB")] = None,
    model: Annotated[
        str | None,
        _many(
            "--model",
            help="T, D, E, K and F of a published model: kimi-k2.7, glm-5.2, qwen3.5, deepseek-v4-pro.",
            metavar="NAME",
            panel=_SHAPE,
        ),
    ] = None,
    tokens: Annotated[str | None, _many("--tokens", help="T, tokens per rank.", metavar="N", panel=_SHAPE)] = None,
    hidden: Annotated[str | None, _many("--hidden", help="D, hidden width.", metavar="N", panel=_SHAPE)] = None,
    experts: Annotated[
        str | None, _many("--experts", help="E, experts over all ranks.", metavar="N", panel=_SHAPE)
    ] = None,
    topk: Annotated[str | None, _many("--topk", help="K, experts per token.", metavar="N", panel=_SHAPE)] = None,
    ffn: Annotated[
        list[str] | None,
        _many("--ffn", help="F, expert FFN width; a list such as 1536,3072.", metavar="N", panel=_SHAPE),
    ] = None,
) -> "Selection":
    """The cases of a matrix under these flags. Raises UsageError naming flag, value and the known values."""
    from moebench.cases.case import Category, Implementation, Mode, Pipeline, Precision
    from moebench.cases.expand import Flags
    from moebench.cases.expand import select as select_cases
    from moebench.cases.matrix import load_matrix

    loaded = load_matrix(matrix)
    given = {
        "T": ("--tokens", tokens),
        "D": ("--hidden", hidden),
        "E": ("--experts", experts),
        "K": ("--topk", topk),
    }
    shape = {axis: _size(flag, axis, text, loaded.shape) for axis, (flag, text) in given.items() if text is not None}
    widths = [_size("--ffn", "F", text, loaded.shape) for text in _split(ffn)]
    if model is not None:
        published = _model(model)
        shape = {axis: getattr(published, axis) for axis in "TDEK"} | shape
        widths = widths or [published.F]
    flags = Flags(
        backend=[_backend(name) for name in _split(backend)],
        mode=_members("--mode", mode, Mode),
        ep=[_number("--ep", text, int, least=1) for text in _split(ep)],
        precision=_members("--precision", precision, Precision),
        pipeline=_members("--pipeline", pipeline, Pipeline),
        category=_members("--category", category, Category),
        imbalance=[_number("--imbalance", text, float, least=0) for text in _split(imbalance)],
        F=widths,
        shape=shape,
        select=select or [],
        implementation=_members("--implementation", [implementation], Implementation)[0],
    )
    return select_cases(loaded, flags)


SELECTING = tuple(inspect.signature(_selection).parameters)
"""Names of the options that choose cases."""

REPEATING = tuple(
    name
    for name, option in inspect.signature(_selection).parameters.items()
    if get_args(option.annotation)[0] == (list[str] | None)
)


def asked_for(given: dict[str, Any], selection: "Selection") -> dict[str, Any]:
    """The options that chose these cases, as a plan records them: `select_again` takes them in any working folder."""
    options = {name: given[name] for name in SELECTING if given[name] is not None}
    if given["matrix"] != selection.matrix.name:
        options["matrix"] = str(selection.matrix.path.resolve())
    return options


def select_again(asked: dict[str, Any]) -> "Selection":
    """The cases that recorded options choose now. Raises UsageError where the matrix is gone or has gone bad."""
    wrong = [name for name, value in asked.items() if name not in SELECTING or not _is_option(name, value)]
    if wrong or "matrix" not in asked:
        raise UsageError(f"the plan's `asked` has no matrix, or options that nobody can give: {', '.join(wrong)}.")
    return _selection(**asked)


def _is_option(name: str, value: Any) -> bool:
    """Whether a command line could have given this value."""
    if name in REPEATING:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    return isinstance(value, str)


def takes_selection(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options that choose cases; it receives the result as its parameter `selection`, and what
    was asked for as `asked` if it has such a parameter."""
    options = inspect.signature(_selection).parameters
    named = inspect.signature(command).parameters
    own = [p for name, p in named.items() if name not in ("selection", "asked")]

    def with_options(**given: Any) -> None:
        choosing = {name: given.pop(name) for name in options}
        chosen = _selection(**choosing)
        if "asked" in named:
            given["asked"] = asked_for(choosing, chosen)
        command(selection=chosen, **given)

    parameters = [*options.values(), *own]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return with_options


def _split(given: Sequence[str] | None) -> list[str]:
    """Values of a repeated flag, each of which may be a comma list; the first of duplicates stays."""
    parts = [part.strip() for text in given or [] for part in text.split(",")]
    return list(dict.fromkeys(parts))


def _known(flag: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{flag} {value}: unknown. Known values: {', '.join(known)}.")
    return value


def _backend(text: str) -> str:
    """A backend that exists: names a mistake in the flag before the matrix is blamed for it."""
    from moebench.cases.expand import resolve_backend

    try:
        resolve_backend(text)
    except UsageError as error:
        raise UsageError(f"--backend {text}: {error}") from error
    return text


def _members(flag: str, given: list[str] | None, kind: type[Member]) -> list[Member]:
    return [kind(_known(flag, text, [member.value for member in kind])) for text in _split(given)]


def _number(flag: str, text: str, kind: Callable[[str], Number], least: int) -> Number:
    what = "a whole number" if kind is int else "a number"
    try:
        value = kind(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text}: not {what}. Give {what}, {least} or more.") from error
    if not least <= value < float("inf"):
        raise UsageError(f"{flag} {text}: out of range. Give {what}, {least} or more.")
    return value


def _size(flag: str, axis: str, text: str, base: "Shape") -> int:
    """The size of a shape's axis, within what a Shape allows."""
    from pydantic import ValidationError

    size = _number(flag, text, int, least=1)
    try:
        type(base).model_validate(base.model_dump() | {axis: size})
    except ValidationError as error:
        raise UsageError(f"{flag} {text}: {error.errors()[0]['msg']}.") from error
    return size


def _model(name: str) -> "Shape":
    from moebench.cases.shape import MODELS

    return MODELS[_known("--model", name.lower(), list(MODELS))]
