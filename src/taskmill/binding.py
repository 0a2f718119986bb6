"""A handler's arguments and result as JSON, by the types that its signature names.

Arguments are bound to their names, so the payload is `{"user_id": 42}` and any client can submit it. A payload that is not an object
goes to a handler with exactly one parameter, as that parameter.

    submit:   values ──payload──▶ JSON          the caller is told at once, and which argument it is
    attempt:  JSON ──arguments──▶ values        a foreign client's mistake is `invalid_arguments`: no retry makes it right

The signature is read once, when the handler is declared; whatever no JSON could ever be turned into is refused there. From then on an
attempt costs one call of a decoder made for exactly these parameters.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, get_type_hints

import msgspec

from taskmill import codec
from taskmill.context import Context
from taskmill.errors import AppError, InvalidInput, InvalidPayload

__all__ = ["Binding"]

Arguments = tuple[tuple[object, ...], dict[str, object]]

_EMPTY: Final = frozenset({b"", b"{}", b"null"})
_CONTEXT_NAMES: Final = re.compile(r"(?:\w+\.)*Context")
_PLAIN_DEFAULTS: Final = (type(None), bool, int, float, str)
_WANTED: Final = "annotate it with a plain type, a dataclass, a msgspec Struct or a pydantic model"


class Binding:
    """What one handler takes and gives."""

    __slots__ = ("_decode", "_extra", "_give", "_keywords", "_names", "_required", "_single", "_types", "wants_context")

    def __init__(self, function: Callable[..., object], name: str | None = None) -> None:
        label = name or str(getattr(function, "__name__", "handler"))
        parameters = list(_signature(function, label).parameters.values())
        hints = _Hints(function, label)
        self.wants_context: bool = bool(parameters) and hints.is_context(parameters[0])
        if self.wants_context:
            del parameters[0]
        self._extra = any(each.kind is each.VAR_KEYWORD for each in parameters)
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        for each in named:
            hints.check(each)
        self._names = tuple(each.name for each in named)
        self._required = frozenset(each.name for each in named if each.default is each.empty)
        self._types = {each.name: hints.of(each) for each in named}
        self._keywords = sum(each.kind is each.KEYWORD_ONLY for each in named)
        self._decode = _object_decoder(label, named, self._types, forbid=not self._extra)
        self._single = _decoder(self._types[self._names[0]]) if len(named) == 1 and not self._extra else None
        self._give = hints.result()

    # On the way in

    def payload(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The JSON to submit for a call with these arguments; what was left to its default is left out."""
        if not args and not kwargs and not self._required:
            return b"{}"
        plain = not kwargs and not self._keywords and len(args) == len(self._names)
        values = dict(zip(self._names, args, strict=True)) if plain else self._bound(args, kwargs)
        try:
            data = codec.encode(values)
        except InvalidPayload as error:
            field = (error.field or "payload").removeprefix("payload.")
            raise InvalidPayload(error.message, code=error.code, field=field, hint=error.hint) from None
        self.arguments(data)
        return data

    def _bound(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        positional = len(self._names) - self._keywords
        if len(args) > positional:
            raise _misfit(f"{len(args)} positional arguments are given, it takes {positional}", None, self._takes())
        values = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name in values:
                raise _misfit("it is given twice", name, "once by position and once by name: leave one out")
            if name not in self._types and not self._extra:
                raise _misfit("there is no such argument", name, self._takes())
            values[name] = value
        for name in self._names:
            if name in self._required and name not in values:
                raise _misfit("it is missing", name, self._takes())
        return values

    def _takes(self) -> str:
        return f"it takes {', '.join(self._names)}" if self._names else "it takes no arguments"

    # On the way to the handler

    def arguments(self, payload: bytes) -> Arguments:
        """The values to call the handler with."""
        if payload in _EMPTY and not self._required:
            return self._defaults() if self._names else ((), {})
        if payload[:1] != b"{":
            return self._alone(payload)
        try:
            found = self._decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            self._refuse(error, payload)
        values = msgspec.structs.astuple(found)
        if self._extra:
            return self._split(values, self._unnamed(payload))
        return self._split(values, {}) if self._keywords else (values, {})

    def _defaults(self) -> Arguments:
        return self._split(msgspec.structs.astuple(self._decode(b"{}")), {})

    def _split(self, values: tuple[object, ...], extra: dict[str, object]) -> Arguments:
        positional = len(self._names) - self._keywords
        return values[:positional], {**dict(zip(self._names[positional:], values[positional:], strict=True)), **extra}

    def _unnamed(self, payload: bytes) -> dict[str, object]:
        found = codec.decode(payload)
        return {name: value for name, value in found.items() if name not in self._types} if isinstance(found, dict) else {}

    def _alone(self, payload: bytes) -> Arguments:
        """A payload that is not an object: the one parameter itself."""
        if self._single is None:
            raise _misfit("it is not an object", "payload", self._takes(), InvalidPayload)
        try:
            value = self._single(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            self._refuse(error, payload, self._names[0])
        return self._split((value,), {})

    def _refuse(self, error: Exception, payload: bytes, root: str = "") -> NoReturn:
        """Says which argument is wrong. The decoder stops at the first; what is missing is said before what is not known."""
        text = str(error)
        missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL)
        if not root and missing:
            raise _misfit("it is missing", missing[1], self._takes(), InvalidPayload) from None
        if not root and unknown:
            raise _misfit("there is no such argument", f"{unknown[1]:.80}", self._takes(), InvalidPayload) from None
        place = _PLACE.search(text)
        field = (root + (place[1] if place else "")).lstrip(".") or "payload"
        message = _unquoted(_PLACE.sub("", text))
        if not isinstance(error, msgspec.ValidationError):
            message, field = f"it is not JSON: {text}", "payload"
        raise _misfit(message, field, None, InvalidPayload) from None

    # On the way out

    def result(self, value: object, limit: int = codec.MOST_PAYLOAD) -> bytes:
        """The JSON to keep of what the handler returned."""
        if value is None:
            return b"null"
        try:
            return codec.encode(value, field="result", limit=limit)
        except InvalidPayload as error:
            if inspect.iscoroutine(value):
                value.close()
                error.hint = "a decorator hides that the handler is async: make its wrapper async too"
            raise InvalidPayload(error.message, code="result_encoding", field=error.field, hint=error.hint) from None

    def returned(self, data: bytes) -> object:
        """What the handler returned, in the type that its signature promises."""
        try:
            return self._give(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidPayload(
                f"the stored result is not what the handler is declared to return: {_unquoted(str(error))}",
                code="result_decoding",
                field="result",
                hint="it was made by another version; (await handle.task()).result has it as JSON",
            ) from None


# The signature


def _signature(function: Callable[..., object], label: str) -> inspect.Signature:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise AppError(f"{label} has no signature that can be read", code="invalid_handler", field=label, hint="decorate a function") from None
    for each in signature.parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            raise _undeclarable(label, each.name, "arguments are bound to their names, and *args has none", f"take a list: {each.name}: list[…]")
        if each.name in {"self", "cls"} and each.annotation is each.empty:
            raise _undeclarable(label, each.name, "a method has no object to be called on in a worker", "decorate a function")
    return signature


class _Hints:
    """The annotations of a function, each resolved on its own, so that the one that cannot be is named."""

    def __init__(self, function: Callable[..., object], label: str) -> None:
        self._label = label
        inner = inspect.unwrap(function)
        self._written: dict[str, object] = dict(getattr(inner, "__annotations__", {}))
        self._module = vars(sys.modules.get(inner.__module__, sys)) if getattr(inner, "__module__", None) else {}
        self._globals: dict[str, Any] = getattr(inner, "__globals__", self._module)

    def is_context(self, parameter: inspect.Parameter) -> bool:
        written = self._written.get(parameter.name)
        if written is None:
            return parameter.name == "ctx"
        try:
            found = self._resolved(parameter.name)
        except Exception:  # whatever an annotation raises when it is evaluated: `of` says which; only the Context may go by its name alone
            return isinstance(written, str) and bool(_CONTEXT_NAMES.fullmatch(written))
        return isinstance(found, type) and issubclass(found, Context)

    def of(self, parameter: inspect.Parameter) -> object:
        """The type of a parameter; without an annotation, whatever JSON can be."""
        if parameter.name not in self._written:
            return Any
        try:
            return self._resolved(parameter.name)
        except Exception as error:  # evaluating an annotation runs the user's code, which may raise anything
            raise _undeclarable(
                self._label,
                parameter.name,
                f"its annotation {self._written[parameter.name]!r} cannot be resolved ({error})",
                "it is needed at run time: define it at the top of a module and import it outside of `if TYPE_CHECKING:`",
            ) from None

    def check(self, parameter: inspect.Parameter) -> None:
        """Refuse a parameter that no JSON could become."""
        found = self.of(parameter)
        if isinstance(found, type) and issubclass(found, Context):
            raise _undeclarable(self._label, parameter.name, "the Context is the first parameter, or there is none", "move it to the front")
        try:
            odd = _unreadable(found)
        except TypeError as error:
            raise _undeclarable(self._label, parameter.name, f"its type cannot be read from JSON: {error}", _WANTED) from None
        if odd is not None:
            raise _undeclarable(self._label, parameter.name, f"its type {odd.__qualname__} cannot be read from JSON", _WANTED)

    def result(self) -> Callable[[bytes], object]:
        """How results are read: typed where the annotation allows it, else as plain JSON."""
        try:
            found = self._resolved("return") if self._written.get("return") is not None else Any
            return codec.decode if found is Any or _unreadable(found) else _decoder(found)
        except Exception:  # a result that cannot be typed is still a result
            return codec.decode

    def _resolved(self, name: str) -> object:
        holder = type("holder", (), {"__annotations__": {name: self._written[name]}, "__module__": self._globals.get("__name__", "")})
        return get_type_hints(holder, self._globals, include_extras=True)[name]


def _unreadable(kind: object) -> type | None:
    """The first class inside a type that JSON cannot be turned into."""
    if kind is object:
        return None
    return next((each for each in _customs(msgspec.inspect.type_info(kind)) if not hasattr(each, "model_validate")), None)


def _customs(info: object) -> Iterator[type]:
    """The classes inside a type that msgspec itself does not know."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.CustomType):
            yield each.cls
        elif isinstance(each, (tuple, list)):
            waiting.extend(each)
        elif isinstance(each, msgspec.Struct) and id(each) not in seen:
            seen.add(id(each))
            waiting.extend(getattr(each, field) for field in each.__struct_fields__)


# Decoders


def _object_decoder(label: str, parameters: list[inspect.Parameter], types: Mapping[str, object], *, forbid: bool) -> Callable[[bytes], msgspec.Struct]:
    fields: list[Any] = [_field(each, types[each.name]) for each in parameters]
    kind = msgspec.defstruct(label, fields, kw_only=True, forbid_unknown_fields=forbid, gc=False)
    return _decoder(kind)


def _field(parameter: inspect.Parameter, kind: object) -> tuple[object, ...]:
    default = parameter.default
    kind = Any if kind is object else kind
    if default is parameter.empty:
        return parameter.name, kind
    if isinstance(default, _PLAIN_DEFAULTS):
        return parameter.name, kind, default
    return parameter.name, kind, msgspec.field(default_factory=lambda: default)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(Any if kind is object else kind, dec_hook=_model).decode


def _model(kind: Any, value: object) -> object:
    """A pydantic model, or whatever else validates as they do."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise NotImplementedError(f"{kind!r} cannot be read from JSON")
    try:
        return validate(value)
    except ValueError as error:
        raise ValueError(_of_model(error)) from None


# Refusals


_PLACE: Final = re.compile(r" - at `\$([^`]*)`$")
_QUOTES: Final = re.compile(r"Invalid (?:enum )?value ")


def _unquoted(message: str) -> str:
    """Without the value that it quotes: the message is stored and logged, and payloads are not."""
    return "it is none of the values that are allowed" if _QUOTES.match(message) else message


def _of_model(error: ValueError) -> str:
    """What pydantic says, without the values it quotes; what a validator of the user's own says, as it is."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = [(".".join(map(str, each["loc"])), each["msg"]) for each in errors(include_url=False, include_context=False, include_input=False)]
    return "; ".join(f"{place}: {message}" if place else message for place, message in found)


def _misfit(message: str, field: str | None, hint: str | None, kind: type[InvalidInput] = InvalidInput) -> InvalidInput:
    return kind(message, code="invalid_arguments", field=field, hint=hint)


def _undeclarable(label: str, parameter: str, message: str, hint: str) -> AppError:
    return AppError(message, code="invalid_handler", field=f"{label}({parameter})", hint=hint)
