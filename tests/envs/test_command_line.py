"""What all command lines share: exit codes, one line for a mistake, usage, a reader that stops."""

import subprocess
import sys

import pytest

from istar_envs.command_line import carry_out, run_command
from istar_envs.errors import ConfigError


def greet(argv: list[str]) -> None:
    """Say hello."""
    sys.stdout.write(f"hello {' '.join(argv)}\n")


def check(argv: list[str]) -> int:
    """Find a fault."""
    return 1


def fail(argv: list[str]) -> None:
    raise ConfigError("no such thing. Try another.")


def stop(argv: list[str]) -> None:
    raise KeyboardInterrupt


COMMANDS = {"greet": greet, "check": check, "fail": fail, "stop": stop}


def call(*argv: str) -> int:
    return run_command("tool", argv, COMMANDS, on_interrupt="start again")


def test_a_command_gets_its_arguments_and_gives_its_code(capsys):
    assert call("greet", "you", "--all") == 0
    assert capsys.readouterr().out == "hello you --all\n"
    assert call("check") == 1


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("fail", 2, "tool fail: no such thing. Try another.\n"),
        ("stop", 130, "tool stop: start again\n"),
        ("grete", 2, "tool: unknown command 'grete'. Did you mean \"greet\"?\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(capsys, name, code, told):
    assert call(name) == code
    assert capsys.readouterr() == ("", told)


def test_an_interrupt_without_words_ends_the_line(capsys):
    assert carry_out("tool", lambda: stop([])) == 130
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize(("argv", "code"), [((), 2), (("--help",), 0), (("-h",), 0)])
def test_the_usage_has_a_line_for_each_command(capsys, argv, code):
    assert call(*argv) == code
    assert capsys.readouterr().out == (
        "usage: tool COMMAND …\n\n  greet  Say hello.\n  check  Find a fault.\n  fail   \n  stop   \n"
    )


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        carry_out("tool", lambda: 1 // 0)


def test_a_reader_that_has_seen_enough_is_no_mistake():
    code = "import sys; from istar_envs.command_line import carry_out as c; " + (
        "sys.exit(c('tool', lambda: sys.stdout.writelines('line\\n' for _ in range(100_000))))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
