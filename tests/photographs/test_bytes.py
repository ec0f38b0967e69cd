"""Actors, learners and servers exchange the same bytes as before."""

from tests.photographs.camera import photograph
from tests.photographs.product import GOLDEN, golden_payloads, scripts


def test_rollouts_and_weights_are_encoded_to_the_bytes_of_the_golden_files() -> None:
    payloads = golden_payloads()
    assert set(payloads) == {file.name for file in GOLDEN.glob("*_schema2.msgpack")}
    assert len(payloads) == 3
    for name, payload in payloads.items():
        assert payload == (GOLDEN / name).read_bytes(), name


def test_the_scripts_that_run_inside_redis_are_the_same_files() -> None:
    photograph("scripts.txt", "\n".join(f"{digest}  {name}" for name, digest in sorted(scripts().items())))
