"""What was submitted, and whether it is what a test expects.

An expectation is a type, perhaps with some of its arguments, or with options: `send_welcome`, `send_welcome, user_id=42`,
`send_welcome.options(delay="10m"), 42`. Arguments it does not name may have any value; those it names are compared as the handler would get them, so that an
expected value may be anything with an `==` of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from taskmill import codec
from taskmill.clock import rfc3339
from taskmill.errors import InvalidInput, InvalidPayload
from taskmill.task import NewTask, check_name
from taskmill.tasks import Call, Options, TaskType

__all__ = ["Expected", "Noted", "Submission", "explain", "submission_of"]

Expectation = TaskType[..., Any, Any] | Options[..., Any] | Call[Any] | str

_MOST_SHOWN = 20
_LONGEST_VALUE = 200


@dataclass(frozen=True)
class Noted:
    """A new task, and when it was submitted."""

    new: NewTask
    at: int


@dataclass(frozen=True)
class Submission:
    """A task that was submitted, as it was then. `arguments` are what its handler gets; of a type that the app does not declare, its payload."""

    id: str
    type: str
    arguments: Mapping[str, Any]
    payload: Any
    new: NewTask = field(repr=False)
    at: int = field(repr=False)
    """When it was submitted, in microseconds since 1970."""

    def __str__(self) -> str:
        return f"{self.type}({_listed(self.arguments) if isinstance(self.payload, dict) or self.arguments else _shown(self.payload)})"


def submission_of(noted: Noted, declared: TaskType[..., Any, Any] | None) -> Submission:
    new = noted.new
    payload = codec.decode(new.payload)
    arguments: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
    if declared is not None:
        with suppress(InvalidPayload):  # submitted by name, unchecked: the attempt will say what is wrong with it
            arguments = _arguments(declared, new.payload)
    return Submission(new.id, new.type, arguments, payload, new, noted.at)


def _arguments(declared: TaskType[..., Any, Any], payload: bytes) -> dict[str, Any]:
    positional, named = declared.binding.arguments(payload)
    return {**dict(zip(_parameters(declared), positional, strict=False)), **named}


def _parameters(declared: TaskType[..., Any, Any]) -> list[str]:
    names = [each.name for each in inspect.signature(declared.function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    return names[1:] if declared.binding.wants_context else names


class Expected:
    """A type, arguments by name, and fields of the new task; what is not named may be anything."""

    def __init__(self, what: Expectation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.type = _type_of(what)
        self.fields: Mapping[str, Any] = {}
        self.expires: int | None = None
        self.payload: tuple[Any, ...] = ()
        self.arguments: dict[str, Any] = dict(kwargs)
        if isinstance(what, str):
            self.payload = tuple(_one(args))
        elif isinstance(what, Call):
            self._take_call(what, args, kwargs)
        else:
            self.arguments = _bound(what if isinstance(what, TaskType) else what.task_type, args, kwargs)
            if isinstance(what, Options):
                self.fields, self.expires = what.wanted.fields, what.wanted.expires

    def _take_call(self, call: Call[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if args or kwargs:
            raise _bad("a call has its arguments already", None, "give the call alone, or the type and its arguments")
        self.fields, self.expires = call.fields, call.expires
        if call.task_type is not None:
            self.arguments = _arguments(call.task_type, call.payload)
        else:
            self.payload = (codec.decode(call.payload),)

    def __str__(self) -> str:
        parts = [_listed(self.arguments), *map(_shown, self.payload)]
        options = {**self.fields, **({"expires_at": f"{self.expires} µs later"} if self.expires is not None else {})}
        return f"{self.type}({', '.join(filter(None, parts))})" + (f" with {_listed(options)}" if options else "")

    def differences(self, found: Submission) -> list[str]:
        """Why a submission is not the one; nothing, if it is."""
        if found.type != self.type:
            return [f"its type is {found.type}, not {self.type}"]
        pairs = [(name, found.arguments.get(name, _MISSING), value) for name, value in self.arguments.items()]
        pairs += [("the payload", found.payload, value) for value in self.payload]
        pairs += [(name, getattr(found.new, name), value) for name, value in self.fields.items()]
        if self.expires is not None:
            pairs.append(("expires_at", found.new.expires_at, found.at + self.expires))
        return [f"{name} is {_shown(there)}, not {_shown(wanted)}" for name, there, wanted in pairs if not _equal(there, wanted)]


class _Missing:
    def __repr__(self) -> str:
        return "absent"


_MISSING = _Missing()


def _type_of(what: object) -> str:
    if isinstance(what, Options):
        return what.task_type.name
    if isinstance(what, TaskType):
        return what.name
    if isinstance(what, Call):
        return what.type
    if isinstance(what, str):
        return check_name(what, "type")
    raise _bad(f"{what!r:.80} is no task", None, "a task type, with or without options, a call of it, or a type's name")


def _one(args: Sequence[Any]) -> Sequence[Any]:
    if len(args) > 1:
        raise _bad(f"{len(args)} payloads are given", None, "a type by its name has one payload")
    return args


def _bound(declared: TaskType[..., Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A name that the handler does not take would match nothing, which `assert_not_submitted` must not take for a proof."""
    names = _parameters(declared)
    takes = f"it takes {', '.join(names)}" if names else "it takes no arguments"
    if len(args) > len(names):
        raise _bad(f"{len(args)} positional arguments are given", declared.name, takes)
    bound = dict(zip(names, args, strict=False))
    free = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(declared.function).parameters.values())
    for name in kwargs:
        if name in bound:
            raise _bad("it is given twice", name, "once by position and once by name: leave one out")
        if name not in names and not free:
            close = get_close_matches(name, names, 1)
            raise _bad(f"{declared.name} has no such argument", name, f"did you mean {close[0]!r}?" if close else takes)
    return {**bound, **kwargs}


def _equal(there: object, wanted: object) -> bool:
    return bool(wanted == there)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def explain(expected: Expected, submissions: Sequence[Submission]) -> str:
    """Why there is no such submission: the nearest one, and all the others."""
    lines = [f"nothing was submitted as {expected}"]
    alike = [each for each in submissions if each.type == expected.type]
    if alike:
        nearest = min(reversed(alike), key=lambda each: len(expected.differences(each)))
        lines.append(f"the nearest is {nearest}: {'; '.join(expected.differences(nearest))}")
    elif close := get_close_matches(expected.type, {each.type for each in submissions}, 1):
        lines.append(f"there is none of this type; did you mean {close[0]}?")
    return "\n".join([*lines, *_all(submissions)])


def _all(submissions: Sequence[Submission]) -> Iterable[str]:
    if not submissions:
        return ["nothing was submitted at all"]
    shown = [f"  {rfc3339(each.at)} {each}" for each in submissions[-_MOST_SHOWN:]]
    older = [f"  … and {len(submissions) - _MOST_SHOWN} before these"] if len(submissions) > _MOST_SHOWN else []
    return [f"submitted were {len(submissions)}:", *older, *shown]


def _bad(message: str, name: str | None, hint: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_arguments", field=name, hint=hint)
