import os
import signal

import pytest

from moebench.launch.interrupts import handle_interrupts


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGINT, "interrupted (Ctrl-C)"),
        (signal.SIGTERM, "interrupted (SIGTERM)"),
        (signal.SIGHUP, "terminal closed"),
    ],
)
def test_first_signal_asks_to_stop_and_says_why(number, why):
    heard = []
    with handle_interrupts(heard.append):
        os.kill(os.getpid(), number)
    assert heard == [why]


def interrupt_twice(heard):
    with handle_interrupts(heard.append):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_second_signal_ends_at_once_and_the_old_handlers_come_back():
    heard, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupt_twice(heard)
    assert heard == ["interrupted (Ctrl-C)"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_that_closes_after_ctrl_c_is_no_second_ctrl_c():
    heard = []
    with handle_interrupts(heard.append):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard[0] == "interrupted (Ctrl-C)"
