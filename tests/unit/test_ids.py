"""Random digits are given out once, in whatever portions, and never twice by two processes."""

import os

from toolwire.gateway.http import RANDOM_BATCH, RandomHex


def test_digits_are_never_given_out_twice():
    digits = RandomHex()
    taken = [digits.take(24) for _ in range(RANDOM_BATCH)]
    assert {len(each) for each in taken} == {24}
    assert len(set(taken)) == len(taken)


def test_as_many_are_given_as_are_asked_for():
    digits = RandomHex()
    assert [len(digits.take(count)) for count in (1, 3 * RANDOM_BATCH, 0, 48)] == [1, 3 * RANDOM_BATCH, 0, 48]


def test_a_child_process_does_not_give_out_what_its_parent_does():
    digits = RandomHex()
    digits.take(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, digits.take(48).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 99).decode() != digits.take(48)
