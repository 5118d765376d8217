"""Flags: the reference UI's names and meanings, refusals that help, secrets that stay hidden."""

import json
from argparse import ArgumentParser
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from modules.cli.commands import command_names
from modules.flags.flags import (
    DEVICE,
    HIDDEN_VALUE,
    PRECISION,
    SECRET_FLAGS,
    Flags,
    UsageError,
    add_arguments,
    flag_name,
    flags_from,
    parse_flags,
    public_flags,
    without_effect,
)
from modules.flags.no_effect import NO_EFFECT
from modules.flags.options import parse_credentials

RECORDED = Path(__file__).parents[1] / "reference" / "get" / "cmd-flags.json"


def test_nothing_given_is_the_default_object() -> None:
    assert parse_flags([]) == Flags()


def test_flags_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        parse_flags([]).listen = True  # type: ignore[misc]


def test_values_arrive_typed() -> None:
    names = ["--styles-file", "a.csv", "--styles-file", "b*.csv", "--lora-dir", "x"]
    words = ["--use-cpu", "ALL", "esrgan", "--precision", "Full", "--loglevel", "debug"]
    flags = parse_flags([*names, *words, "--port", "80", "--device-id", "1"])
    assert (flags.port, flags.use_cpu, flags.styles_file) == (80, ("all", "esrgan"), ("a.csv", "b*.csv"))
    assert (flags.device_id, flags.precision, flags.loglevel, flags.lora_dir) == (1, "full", "DEBUG", "x")


def test_commandline_args_are_appended_and_split_like_a_shell() -> None:
    flags = parse_flags(["--port", "80"], {"COMMANDLINE_ARGS": "--port 81 --data-dir 'my data'"})
    assert (flags.port, flags.data_dir) == (81, "my data")


def test_commandline_args_with_an_open_quote_are_refused() -> None:
    with pytest.raises(UsageError, match="COMMANDLINE_ARGS cannot be split"):
        parse_flags([], {"COMMANDLINE_ARGS": "--data-dir 'my"})


def test_test_server_implies_the_flags_of_the_reference() -> None:
    flags = parse_flags(["--test-server"], {"COMMANDLINE_ARGS": "--nowebui"})
    assert flags.api and flags.disable_nan_check and flags.skip_torch_cuda_test
    assert not flags.nowebui


def test_port_follows_nowebui_unless_given() -> None:
    assert parse_flags([]).port == 7860
    assert parse_flags(["--nowebui"]).port == 7861
    assert parse_flags(["--nowebui", "--port", "7000"]).port == 7000
    assert parse_flags(["--nowebui"]).api


@pytest.mark.parametrize(
    ("argv", "host"),
    [([], "127.0.0.1"), (["--listen"], "0.0.0.0"), (["--listen", "--server-name", "10.0.0.1"], "10.0.0.1")],
)
def test_host(argv: list[str], host: str) -> None:
    assert parse_flags(argv).host == host


@pytest.mark.parametrize("port", ["0", "65536", "-1", "abc", ""])
def test_port_out_of_range_is_refused_with_the_range(port: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 65535"):
        parse_flags([f"--port={port}"])


def test_unknown_flag_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="unknown flag --lissten; did you mean --listen"):
        parse_flags(["--lissten"])


def test_unknown_flag_does_not_repeat_its_value() -> None:
    with pytest.raises(UsageError, match="did you mean --api-auth") as caught:
        parse_flags(["--apiauth=me:secret"])
    assert "secret" not in str(caught.value)


def test_flags_are_not_abbreviated() -> None:
    with pytest.raises(UsageError, match="unknown flag --nohash"):
        parse_flags(["--nohash"])


def test_stray_word_is_refused() -> None:
    with pytest.raises(UsageError, match="'extra' belongs to no flag"):
        parse_flags(["--listen", "extra"])


@pytest.mark.parametrize("name", ["--api-auth", "--gradio-auth"])
@pytest.mark.parametrize("text", ["hunter2", ":hunter2", "me:ok,hunter2", ","])
def test_credentials_without_a_user_are_refused_without_repeating_them(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="user:password") as caught:
        parse_flags([name, text])
    assert "hunter2" not in str(caught.value)


def test_credentials_split_at_commas_lines_and_the_first_colon() -> None:
    assert parse_credentials("a:b:c, d:e\nf:g\n") == (("a", "b:c"), ("d", "e"), ("f", "g"))


@pytest.mark.parametrize("argv", [["--precision", "half", "--no-half"], ["--precision", "half", "--no-half-vae"]])
def test_half_and_no_half_contradict_each_other(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="contradict"):
        parse_flags(argv)


def test_tls_needs_key_and_certificate() -> None:
    with pytest.raises(UsageError, match="both --tls-keyfile and --tls-certfile"):
        parse_flags(["--tls-keyfile", "key.pem"])


def test_choices_are_listed() -> None:
    with pytest.raises(UsageError, match="autocast"):
        parse_flags(["--precision", "double"])


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_flags(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(flag_name(field.name) in text for field in fields(Flags))
    appendix = text.index("without effect here:")
    assert text.index("--listen") < appendix < text.index("  --deepdanbooru")
    commands = text[text.index("Commands, each with --help") :].replace("\n", " ").replace("- ", "-")
    assert all(name in commands for name in command_names())
    assert " yet\n" not in text and "[--listen]" not in text, "no promises, and no list of all flags before their list"


def test_flags_without_effect_are_named_with_their_reason() -> None:
    found = without_effect(parse_flags(["--opt-channelslast", "--listen", "--deepdanbooru"]))
    assert list(found) == ["--opt-channelslast", "--deepdanbooru"]
    assert "one layout" in found["--opt-channelslast"]


@pytest.mark.parametrize("argv", [["--share"], ["--ngrok", "token"], ["--ngrok-region", "eu"]])
def test_tunnels_are_refused_by_name_with_the_remedy(argv: list[str]) -> None:
    with pytest.raises(UsageError, match=rf"{argv[0]} would open a tunnel.*--listen and a login.*reverse proxy"):
        parse_flags(argv)
    with pytest.raises(UsageError, match="reverse proxy"):
        parse_flags([], {"COMMANDLINE_ARGS": " ".join(argv)})


def test_every_reason_belongs_to_a_flag() -> None:
    assert set(NO_EFFECT) <= {field.name for field in fields(Flags)}


def test_public_flags_have_the_names_and_types_of_the_reference() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    shown = public_flags(parse_flags(["--port", "7860", "--use-cpu", "all"]), {"data_dir": "/data"})
    json.dumps(shown)
    assert set(recorded) <= set(shown)
    for name, value in recorded.items():
        assert shown[name] is None or type(shown[name]) is type(value) or value is None, name
    assert (shown["port"], shown["use_cpu"], shown["data_dir"]) == ("7860", ["all"], "/data")


def test_public_flags_keep_what_was_given_over_the_defaults() -> None:
    assert public_flags(parse_flags(["--data-dir", "mine"]), {"data_dir": "/data"})["data_dir"] == "mine"


def test_public_flags_hide_secrets() -> None:
    argv = ["--api-auth", "a:hunter2", "--gradio-auth", "a:hunter2", "--tls-certfile", "cert"]
    flags = parse_flags([*argv, "--tls-keyfile", "hunter2"])
    shown = public_flags(replace(flags, ngrok="hunter2", ngrok_options='{"token": "hunter2"}'))
    assert "hunter2" not in json.dumps(shown)
    assert shown["api_auth"] == shown["gradio_auth"] == shown["tls_keyfile"] == HIDDEN_VALUE
    assert public_flags(Flags())["api_auth"] is None
    assert set(SECRET_FLAGS) <= set(shown)


def test_a_subcommand_can_take_over_groups_of_flags() -> None:
    parser = ArgumentParser()
    parser.add_argument("--prompt")
    add_arguments(parser, (PRECISION, DEVICE))
    flags = flags_from(parser.parse_args(["--prompt", "a", "--no-half"]))
    assert flags == Flags(no_half=True)
