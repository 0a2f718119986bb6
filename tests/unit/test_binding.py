"""Arguments and results: what a signature takes, what comes back out of JSON, and what is refused where."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from taskmill.binding import Binding
from taskmill.context import Context
from taskmill.errors import AppError, InvalidInput, InvalidPayload

if TYPE_CHECKING:
    from fractions import Fraction

    import taskmill


@dataclass
class Address:
    street: str
    zip: int = 0
    lines: list[str] = field(default_factory=list)


class Order(msgspec.Struct):
    id: UUID
    price: Decimal


class Person(pydantic.BaseModel):
    name: str
    born: dt.date
    friends: list[Person] = []


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Box(TypedDict):
    width: int


def takes_int(value: int) -> None: ...
def takes_float(value: float) -> None: ...
def takes_text(value: str) -> None: ...
def takes_flag(value: bool) -> None: ...
def takes_bytes(value: bytes) -> None: ...
def takes_optional(value: int | None) -> None: ...
def takes_union(value: int | str) -> None: ...
def takes_list(value: list[int]) -> None: ...
def takes_nested(value: dict[str, list[Address]]) -> None: ...
def takes_tuple(value: tuple[int, str]) -> None: ...
def takes_set(value: set[int]) -> None: ...
def takes_sequence(value: Sequence[int]) -> None: ...
def takes_mapping(value: Mapping[str, int]) -> None: ...
def takes_dataclass(value: Address) -> None: ...
def takes_struct(value: Order) -> None: ...
def takes_model(value: Person) -> None: ...
def takes_models(value: list[Person]) -> None: ...
def takes_datetime(value: dt.datetime) -> None: ...
def takes_date(value: dt.date) -> None: ...
def takes_timedelta(value: dt.timedelta) -> None: ...
def takes_uuid(value: UUID) -> None: ...
def takes_decimal(value: Decimal) -> None: ...
def takes_enum(value: Color) -> None: ...
def takes_int_enum(value: Level) -> None: ...
def takes_literal(value: Literal["a", "b"]) -> None: ...
def takes_any(value: Any) -> None: ...
def takes_object(value: object) -> None: ...
def takes_typed_dict(value: Box) -> None: ...


ADDRESS = Address("Main Street", 7, ["a"])
ORDER = Order(UUID(int=5), Decimal("1.10"))
PERSON = Person(name="Ada", born=dt.date(1815, 12, 10), friends=[Person(name="Charles", born=dt.date(1791, 12, 26))])

ROUND_TRIPS: list[tuple[Callable[..., None], object]] = [
    (takes_int, 42),
    (takes_int, 2**63),
    (takes_float, 1.5),
    (takes_text, "é"),
    (takes_flag, True),
    (takes_bytes, b"\x00\xff"),
    (takes_optional, None),
    (takes_optional, 3),
    (takes_union, "x"),
    (takes_union, 3),
    (takes_list, [1, 2]),
    (takes_nested, {"home": [ADDRESS]}),
    (takes_tuple, (1, "a")),
    (takes_set, {1, 2}),
    (takes_sequence, [1]),
    (takes_mapping, {"a": 1}),
    (takes_dataclass, ADDRESS),
    (takes_struct, ORDER),
    (takes_model, PERSON),
    (takes_models, [PERSON, PERSON]),
    (takes_datetime, dt.datetime(2026, 1, 31, 9, 0, tzinfo=dt.UTC)),
    (takes_date, dt.date(2026, 1, 31)),
    (takes_timedelta, dt.timedelta(seconds=90)),
    (takes_uuid, UUID(int=7)),
    (takes_decimal, Decimal("0.30")),
    (takes_enum, Color.BLUE),
    (takes_int_enum, Level.HIGH),
    (takes_literal, "b"),
    (takes_any, {"a": [1, None]}),
    (takes_object, [1]),
    (takes_typed_dict, {"width": 3}),
]


@pytest.mark.parametrize(("function", "value"), ROUND_TRIPS, ids=[f"{function.__name__}-{n}" for n, (function, _) in enumerate(ROUND_TRIPS)])
def test_a_value_comes_to_the_handler_as_it_was_given(function: Callable[..., None], value: object) -> None:
    binding = Binding(function)
    [arrived], named = binding.arguments(binding.payload((value,), {}))
    assert arrived == value
    assert type(arrived) is type(value)
    assert named == {}


def test_arguments_are_bound_to_their_names() -> None:
    def send(user_id: int, text: str = "hello", *, urgent: bool = False) -> None: ...

    binding = Binding(send)
    assert binding.payload((42,), {}) == b'{"user_id":42}'
    assert binding.payload((42,), {"urgent": True}) == b'{"user_id":42,"urgent":true}'
    assert binding.arguments(b'{"urgent":true,"user_id":42}') == ((42, "hello"), {"urgent": True})


def test_what_was_left_out_has_the_handlers_own_default() -> None:
    there = [1]

    def send(a: int = 1, b: list[int] = there, c: Address = ADDRESS) -> None: ...

    for payload in (b"", b"{}", b"null"):
        [first, second, third], _ = Binding(send).arguments(payload)
        assert first == 1
        assert second is there
        assert third is ADDRESS


def test_order_is_the_signatures_whatever_has_a_default() -> None:
    def send(a: int, b: str = "b", *, c: int, d: str = "d") -> None: ...

    assert Binding(send).arguments(b'{"d":"x","c":3,"a":1}') == ((1, "b"), {"c": 3, "d": "x"})


def test_positional_only_parameters_have_names_in_the_payload() -> None:
    def send(a: int, /, b: int) -> None: ...

    binding = Binding(send)
    assert binding.payload((1, 2), {}) == b'{"a":1,"b":2}'
    assert binding.arguments(b'{"a":1,"b":2}') == ((1, 2), {})


def test_keywords_of_any_name() -> None:
    def send(a: int, **rest: Any) -> None: ...

    binding = Binding(send)
    assert binding.payload((1,), {"b": 2}) == b'{"a":1,"b":2}'
    assert binding.arguments(b'{"a":1,"b":[2]}') == ((1,), {"b": [2]})


def test_without_annotation_anything_goes() -> None:
    assert Binding(lambda a, b=None: None).arguments(b'{"a":{"x":[1]}}') == (({"x": [1]}, None), {})


@pytest.mark.parametrize(("payload", "value"), [(b"42", 42), (b'"x"', "x"), (b"[1,2]", [1, 2]), (b"null", None)])
def test_a_payload_that_is_no_object_is_the_one_parameter(payload: bytes, value: object) -> None:
    assert Binding(takes_any).arguments(payload) == ((value,), {})


def test_a_keyword_only_parameter_alone() -> None:
    def send(*, a: int) -> None: ...

    assert Binding(send).arguments(b"3") == ((), {"a": 3})


# The context


def test_the_context_is_no_argument() -> None:
    def annotated(ctx: Context, a: int) -> None: ...
    def renamed(context: Context, a: int) -> None: ...

    for function in (annotated, renamed):
        binding = Binding(function)
        assert binding.wants_context
        assert binding.payload((1,), {}) == b'{"a":1}'


def test_a_context_that_only_type_checkers_import() -> None:
    def handler(ctx: taskmill.Context, a: int) -> None: ...

    assert Binding(handler).wants_context


def test_a_first_parameter_of_another_type_is_an_argument() -> None:
    def handler(ctx: int) -> None: ...

    assert not Binding(handler).wants_context
    assert not Binding(takes_any).wants_context


# Refused when submitted


def misfit(function: Callable[..., object], *args: object, **kwargs: object) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Binding(function).payload(args, kwargs)
    return caught.value


def two(a: int, b: int) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "text"),
    [
        ((1,), {}, "b", "it is missing"),
        ((1, 2, 3), {}, None, "3 positional arguments are given, it takes 2"),
        ((1, 2), {"a": 3}, "a", "it is given twice"),
        ((1, 2), {"c": 3}, "c", "there is no such argument"),
        ((1, "2"), {}, "b", "Expected `int`, got `str`"),
    ],
    ids=["missing", "many", "twice", "unknown", "type"],
)
def test_a_call_that_does_not_fit(args: tuple[object, ...], kwargs: dict[str, object], field: str | None, text: str) -> None:
    error = misfit(two, *args, **kwargs)
    assert (error.code, error.field, error.message) == ("invalid_arguments", field, text)


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "field", "code"),
    [
        (Opaque(), "value", "not_encodable"),
        ({"items": [0, 1, 2, Opaque()]}, "value.items[3]", "not_encodable"),
        (float("nan"), "value", "not_finite"),
        (2**70, "value", "integer_too_large"),
        ("a\0b", "value", "nul_character"),
        ([{"deep": "\ud800"}], "value[0].deep", "lone_surrogate"),
        ({1: "a"}, "value", "not_encodable"),
    ],
    ids=["object", "nested", "nan", "large", "nul", "surrogate", "key"],
)
def test_an_argument_that_cannot_be_encoded_is_named(value: object, field: str, code: str) -> None:
    error = misfit(takes_any, value)
    assert isinstance(error, InvalidPayload)
    assert (error.field, error.code) == (field, code)


def test_too_large_a_payload() -> None:
    assert misfit(takes_text, "x" * 1_048_576).code == "payload_too_large"


# Refused in the worker: what foreign clients send


@pytest.mark.parametrize(
    ("payload", "field", "text"),
    [
        (b'{"a":1}', "b", "it is missing"),
        (b"null", "payload", "it is not an object"),
        (b"[1,2]", "payload", "it is not an object"),
        (b'{"a":1,"b":2,"c":3}', "c", "there is no such argument"),
        (b'{"a":1,"b":"2"}', "b", "Expected `int`, got `str`"),
        (b'{"a":1,"b":', "payload", "it is not JSON: Input data was truncated"),
    ],
    ids=["missing", "null", "array", "unknown", "type", "torn"],
)
def test_foreign_arguments_that_do_not_fit(payload: bytes, field: str, text: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(two).arguments(payload)
    assert (caught.value.code, caught.value.field, caught.value.message) == ("invalid_arguments", field, text)


def test_the_place_inside_of_an_argument_is_named() -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(takes_nested).arguments(b'{"value":{"home":[{"street":5}]}}')
    assert caught.value.field == "value[...][0].street"


def test_a_model_that_does_not_validate_names_its_argument() -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(takes_model).arguments(b'{"value":{"name":"Ada","born":"yesterday"}}')
    assert caught.value.field == "value"
    assert "born" in caught.value.message


def test_the_one_parameter_of_the_wrong_type() -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(takes_list).arguments(b'[1,"2"]')
    assert caught.value.field == "value[1]"


# Refused when declared


def undeclarable(function: Callable[..., object]) -> AppError:
    with pytest.raises(AppError) as caught:
        Binding(function)
    assert caught.value.hint
    return caught.value


def test_positions_without_a_name() -> None:
    def send(*users: int) -> None: ...

    error = undeclarable(send)
    assert error.field == "send(users)"
    assert error.hint == "take a list: users: list[…]"


def test_an_annotation_that_only_type_checkers_see() -> None:
    def send(a: int, part: Fraction) -> None: ...

    error = undeclarable(send)
    assert error.field == "send(part)"
    assert "TYPE_CHECKING" in (error.hint or "")


def test_a_type_that_no_json_becomes() -> None:
    def path(file: Path) -> None: ...
    def inside(files: list[Path]) -> None: ...
    def union(a: Address | Order) -> None: ...

    assert undeclarable(path).field == "path(file)"
    assert undeclarable(inside).field == "inside(files)"
    assert undeclarable(union).field == "union(a)"


def test_a_context_that_is_not_first() -> None:
    def send(a: int, ctx: Context) -> None: ...

    assert undeclarable(send).hint == "move it to the front"


def test_a_method() -> None:
    class Mailer:
        def send(self, a: int) -> None: ...

    assert undeclarable(Mailer.send).field == "send(self)"


# Results


def gives_address() -> Address:
    return ADDRESS


def gives_model() -> Person | None:
    return PERSON


def gives_bounded() -> Annotated[int, msgspec.Meta(ge=0)]:
    return 1


def gives_path() -> Path:
    return Path()


@pytest.mark.parametrize("value", [ADDRESS, Address("x")])
def test_a_result_comes_back_in_its_type(value: Address) -> None:
    binding = Binding(gives_address)
    assert binding.returned(binding.result(value)) == value


def test_a_model_as_result() -> None:
    binding = Binding(gives_model)
    assert binding.returned(binding.result(PERSON)) == PERSON
    assert binding.returned(b"null") is None


def test_nothing_is_null() -> None:
    assert Binding(takes_int).result(None) == b"null"


def test_a_result_whose_type_is_not_readable_is_plain_json() -> None:
    assert Binding(gives_path).returned(b'"."') == "."


def test_a_stored_result_of_another_version() -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(gives_bounded).returned(b'"text"')
    assert caught.value.code == "result_decoding"


@pytest.mark.parametrize("value", [Opaque(), float("inf"), {1: 2}], ids=["object", "infinite", "key"])
def test_a_result_that_cannot_be_encoded(value: object) -> None:
    with pytest.raises(InvalidPayload) as caught:
        Binding(takes_int).result(value)
    assert (caught.value.code, caught.value.field) == ("result_encoding", "result")


def test_a_handler_whose_decorator_hides_that_it_is_async() -> None:
    async def handler() -> None: ...

    with pytest.raises(InvalidPayload, match="hides that the handler is async"):
        Binding(takes_int).result(handler())


# What is refused is not quoted


def takes_word(value: Literal["a"]) -> None: ...
def takes_color(value: Color) -> None: ...
def takes_level(value: Level) -> None: ...
def takes_person(value: Person) -> None: ...
def takes_order(value: Order) -> None: ...


@pytest.mark.parametrize("function", [takes_int, takes_word, takes_color, takes_level, takes_person, takes_order])
@pytest.mark.parametrize("value", [b'"4111111"', b"4111111", b'{"name": "x", "born": "4111111"}', b'"x - at `$.4111111`"'])
def test_a_value_that_is_refused_is_not_in_the_message(function: Callable[..., object], value: bytes) -> None:
    try:
        Binding(function).arguments(b'{"value": %b}' % value)
    except InvalidPayload as error:
        assert "4111111" not in str(error)
        assert (error.field or "").startswith("value")


def test_a_model_says_which_of_its_fields_is_wrong() -> None:
    with pytest.raises(InvalidPayload) as refused:
        Binding(takes_person).arguments(b'{"value": {"name": "x", "born": "spring"}}')
    assert refused.value.field == "value"
    assert "born: Input should be a valid date" in refused.value.message
