import pathlib
import tempfile

import pytest


@pytest.fixture
def directory():
    """A directory on a drive: /tmp may be in memory, where direct I/O is not possible."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir=".") as name:
        yield pathlib.Path(name).resolve()
