"""The example of docs/python.md, a copy of which is beside this file where the wheel is tested."""

import pathlib
import re

import numpy as np
import pytest

page = pathlib.Path(__file__).with_name("python.md")


@pytest.mark.skipif(not page.exists(), reason="there is no copy of docs/python.md")
def test_the_example_runs(directory, monkeypatch):
    monkeypatch.chdir(directory)
    example, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(example, names)  # noqa: S102
    np.testing.assert_allclose(names["parameters"], 0.999)
