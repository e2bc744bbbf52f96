"""The examples of docs/python.md, a copy of which is beside this file where the wheel is tested."""

import pathlib
import re

import numpy as np
import pytest

page = pathlib.Path(__file__).with_name("python.md")


@pytest.mark.skipif(not page.exists(), reason="there is no copy of docs/python.md")
@pytest.mark.parametrize("number", [0, 1])
def test_examples_with_numpy_run(directory, monkeypatch, number):
    monkeypatch.chdir(directory)
    examples = re.findall(r"```python\n(import numpy.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(examples[number], names)  # noqa: S102
    if number == 0:
        np.testing.assert_allclose(names["parameters"], 0.999)
    else:
        assert (names["weights"] == 1).all()
    assert len(examples) == 2
