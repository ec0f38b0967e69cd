"""The kept corpus of broken messages, and the fuzzer that adds to it."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.wire import CORPUS, corpus, seeds, try_payload


@pytest.mark.parametrize("file", corpus(), ids=lambda file: file.stem)
def test_every_input_of_the_corpus_is_quickly_decoded_or_refused(file: Path) -> None:
    started = time.thread_time()
    try_payload(file.read_bytes())
    assert time.thread_time() - started < 0.05  # all are below 2 KB and take far less than 1 ms


def test_the_corpus_is_there_and_every_kind_of_damage_is_tried() -> None:
    assert len(corpus()) >= 30
    for payload in seeds():
        try_payload(payload)


@pytest.mark.fuzz
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris: pip install '.[fuzz]'")
def test_half_a_minute_of_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    limits = ["-max_total_time=30", "-max_len=2048", "-rss_limit_mb=2048"]
    command = [sys.executable, "-m", "tests.fuzz", *limits, str(tmp_path), str(CORPUS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Done" in result.stderr
