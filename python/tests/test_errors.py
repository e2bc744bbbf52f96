"""Errors are exceptions with the fields, of a class for each kind."""

import copy
import pickle

import penstock
import pytest
from penstock import errors


def test_a_missing_file_is_a_file_not_found_error(directory):
    name = str(directory / "none" / "file")
    with penstock.Files() as files, pytest.raises(FileNotFoundError) as caught:
        files.begin_read(name, bytearray(4096))
    error = caught.value
    assert isinstance(error, penstock.NotFound) and isinstance(error, penstock.Error)
    assert error.object == error.filename == name
    assert error.operation and error.advice and name in str(error)
    assert error.offset is None


def test_fields_have_what_the_message_has(directory):
    (directory / "short").write_bytes(b"x" * 100)
    with penstock.Files() as files, pytest.raises(penstock.Truncated) as caught:
        files.begin_read(directory / "short", bytearray(4096))
    assert "4096" in caught.value.wanted.replace(" ", "") or "4.0 KiB" in caught.value.wanted
    for text in (caught.value.wanted, caught.value.got, caught.value.reason, caught.value.advice):
        assert text and text in str(caught.value)


def test_errors_survive_other_processes():
    with pytest.raises(penstock.InvalidArgument) as caught:
        penstock.Files(engine="none")
    other = pickle.loads(pickle.dumps(caught.value))
    assert type(other) is penstock.InvalidArgument and str(other) == str(caught.value)
    assert other.wanted == caught.value.wanted != ""


def test_errors_with_more_on_them_survive_too():
    with pytest.raises(penstock.InvalidArgument) as caught:
        penstock.Files(engine="none")
    caught.value.rank = 3
    if hasattr(caught.value, "add_note"):
        caught.value.add_note("rank 3")
    assert copy.copy(caught.value).rank == pickle.loads(pickle.dumps(caught.value)).rank == 3


def test_each_kind_has_a_class_and_a_later_one_is_an_error():
    kinds = [errors.exception_of(code, "text") for code in range(1, 19)]
    assert len({type(kind) for kind in kinds}) == 18
    assert all(type(kind) in vars(penstock).values() for kind in kinds)
    assert type(errors.exception_of(99, "text")) is penstock.Error
    assert isinstance(errors.exception_of(15, "text"), TimeoutError)
    assert isinstance(errors.exception_of(1, "text"), ValueError)
    assert isinstance(errors.exception_of(6, "text", os_error=28), OSError)
    assert errors.exception_of(6, "text", os_error=28).errno == 28
