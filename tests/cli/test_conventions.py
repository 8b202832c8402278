"""The conventions of every command: exit codes, configuration and texts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import imap_wal
from rewrite_cli.cli import COMMANDS
from rewrite_cli.console import config_file
from tests.cli.conftest import Run
from tests.kit.effort import every


def test_help_lists_every_command_and_reads_no_parquet_library() -> None:
    program = (
        "import sys, rewrite_cli.cli as c; c.group.main(['--help'], standalone_mode=False); "
        "sys.exit('pyarrow' in sys.modules or 'pyspark' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert all(name in ended.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_an_example(run: Run, name: str) -> None:
    ended = run(name, "--help")
    assert ended.code == 0
    if name not in ("node", "plugin", "keys", "encryption-key", "spark", "stream"):
        assert "Example" in ended.out


def test_an_unknown_command_suggests_the_right_one(run: Run) -> None:
    """An unknown command is wrong usage."""
    ended = run("dmup")
    assert ended.code == 2
    assert "did you mean 'dump'" in ended.err


def test_an_option_after_the_command_is_told_where_it_goes(run: Run, url: str) -> None:
    """Those of all commands go before it."""
    ended = run("verify", url, "--encryption-keys", "file:keys")
    assert ended.code == 2
    assert "before the command: imap-wal --encryption-keys ... verify" in ended.err
    assert "before the command" not in run("verify", url, "--wrong").err
    assert "before the command" not in run("--wrong").err


def test_a_wrong_source_of_keys_names_its_option(run: Run, url: str) -> None:
    ended = run("--encryption-keys", "keys", "verify", url)
    assert ended.code == 2
    assert "encryption_keys takes" in ended.err
    assert "URL'" not in ended.err


def test_a_missing_url_is_wrong_usage(run: Run) -> None:
    ended = run("ls")
    assert ended.code == 2
    assert "URL" in ended.err


def test_a_url_without_a_log_is_explained(run: Run, tmp_path: Path) -> None:
    """The error names the right URL."""
    ended = run("ls", tmp_path)
    assert ended.code == 1
    assert "no log of imap-wal" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("below", "up"),
    [
        ("prod", "one level up"),
        ("prod/eu", "two levels up"),
        ("prod/eu/nodes/n1", "four levels up"),
    ],
)
def test_a_url_too_deep_names_the_root(run: Run, root: Path, below: str, up: str) -> None:
    """The error names the number of levels up to the root."""
    ended = run("stat", root / below)
    assert ended.code == 1
    assert up in ended.err
    assert f"pass the root, {up}" in run("doctor", root / below).out


def test_an_unknown_scheme_fails_in_one_line(run: Run) -> None:
    ended = run("ls", "gopher://x/y")
    assert ended.code == 1
    assert len(ended.err.strip().splitlines()) == 1
    assert "gopher" in ended.err


def test_an_unknown_node_or_cluster_names_those_there_are(run: Run, url: str) -> None:
    assert "n1, n2" in run("ls", url, "--node", "n9").err
    assert "prod/eu" in run("ls", url, "--cluster", "us").err


def test_options_come_from_variables(run: Run, url: str) -> None:
    ended = run("ls", "-o", "json", env={"IMAP_WAL_URL": url, "IMAP_WAL_NODE": "n2"})
    assert [node["node"] for node in ended.json["nodes"]] == ["n2"]


def test_flags_override_the_options_file(run: Run, url: str, tmp_path: Path) -> None:
    """The options come from the file in the working folder."""
    (tmp_path / "imap-wal.toml").write_text(
        f'url = "{url}"\nnode = ["n1"]\n[ls]\noutput = "json"\n'
    )
    assert [node["node"] for node in run("ls").json["nodes"]] == ["n1"]
    assert [node["node"] for node in run("ls", "--node", "n2").json["nodes"]] == ["n2"]


def test_a_wrong_key_in_the_file_is_named(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "imap-wal.toml").write_text("[rewrite]\nengin = 'spark'\n")
    ended = run("ls", url)
    assert ended.code == 2
    assert "[rewrite] has no option 'engin'" in ended.err
    (tmp_path / "imap-wal.toml").write_text("namespce = 'x'\n")
    assert "'namespce'" in run("ls", url).err
    (tmp_path / "imap-wal.toml").write_text("namespace = \n")
    assert "not TOML" in run("ls", url).err


def test_a_locked_node_ends_with_4_and_names_the_holder(run: Run, url: str) -> None:
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1"):
        ended = run("archive", url, "--node", "n1")
    assert ended.code == 4
    assert str(os.getpid()) in ended.err


def test_nothing_destructive_without_yes_or_an_answer(run: Run, url: str) -> None:
    before = run("export", url).out
    assert run("drop", url, "--map", "orders").code == 2
    assert run("export", url).out == before


def test_a_closed_output_pipe_is_no_error(url: str) -> None:
    command = f"{sys.executable} -m rewrite_cli.cli dump {url} | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr == ""


def test_a_bug_is_reported_in_one_line(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--debug` shows the traceback."""

    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("rewrite_cli.console.selection.take_inventory", broken)
    ended = run("ls", url)
    assert ended.code == 1
    assert "this is a bug" in ended.err
    assert "Traceback" not in ended.err
    assert "Traceback" in run("--debug", "ls", url).err


def test_a_command_in_a_group_has_its_own_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "imap-wal.toml").write_text("[node.start]\nmembres = 3\n")
    ended = run("plugin", "path")
    assert ended.code == 2
    assert "[node.start] has no option 'membres'" in ended.err
    (tmp_path / "imap-wal.toml").write_text("[plugin.config]\nagent = 'tcp://127.0.0.1:7799'\n")
    assert "tcp://127.0.0.1:7799" in run("plugin", "config").out


def test_yes_is_never_taken_from_a_file(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "imap-wal.toml").write_text("[prune]\nyes = true\n")
    assert run("prune", url).code == 2


def test_library_errors_carry_command_line_advice(
    run: Run, url: str, root: Path, newest_segment: Path
) -> None:
    """Advice such as `takeover=True` is for programs."""
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1"):
        locked = run("archive", url, "--node", "n1")
    assert "stop that process and run the command again" in locked.err
    assert "an agent or embedded store archives automatically if archive_interval_s" in locked.err
    assert locked.code == 4
    hidden = root / "prod/eu/nodes/n2"
    hidden.rename(root.parent / "n2")
    missing = run("export", url)
    assert "export, restore and rewrite take --partial" in missing.err
    assert any(
        "--partial" in each["advice"] for each in run("verify", url, "-o", "json").json["files"]
    )
    assert run("export", url, "--partial").code == 0
    (root.parent / "n2").rename(hidden)
    data = bytearray(newest_segment.read_bytes())
    data[150] ^= 1
    newest_segment.write_bytes(data)
    damaged = run("export", url)
    assert "`imap-wal repair`" in damaged.err
    for ended in (locked, missing, damaged):
        assert ended.code in (1, 4)
        assert "=True" not in ended.err
        assert "='" not in ended.err


def test_a_missing_log_names_imap_wal_open(run: Run, tmp_path: Path) -> None:
    """The error for a root without a log names this call."""
    assert "passed to imap_wal.open" in run("ls", tmp_path).err


@every(4)
@pytest.mark.parametrize(
    "words",
    [("verify", "--max-duration"), ("rewrite", "--max-clock-skew"), ("node", "start", "--timeout")],
)
@pytest.mark.parametrize("value", ["nan", "inf", "9" * 400, "0", "-1"])
def test_a_duration_that_cannot_be_waited_for_is_wrong_usage(
    run: Run, url: str, words: tuple[str, ...], value: str
) -> None:
    ended = run(*words, value, *(() if words[0] == "node" else (url,)))
    assert ended.code == 2 and "is not a duration" in ended.err


@every(7)
@pytest.mark.parametrize("command", ["restore", "repair"])
@pytest.mark.parametrize("place", ["maps", "maps/copy", "maps/../maps/deep/er", "link/copy", "."])
def test_no_copy_overlaps_its_source(
    run: Run, url: str, root: Path, command: str, place: str
) -> None:
    """No copy is written into its own source or around it."""
    (root.parent / "link").symlink_to(root)
    before = sorted(root.parent.rglob("*"))
    for target in (
        f"{root.parent}/{place}",
        f"file://{root.parent}/{place}",
        f"objects+file://{root.parent}/{place}",
    ):
        ended = run(command, url, "--to", target)
        said = (
            r"which is read: name a"
            if "copy" in place or "deep" in place
            else r"which is read|is not empty|already"
        )
        assert ended.code == 1 and re.search(said, ended.err)
    assert sorted(root.parent.rglob("*")) == before
    assert run(command, url, "--to", f"{root}-copy").code == 0, (
        "a name that begins like the source's is another folder"
    )


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize(
    "words",
    [
        *(
            (name, "{}")
            for name in COMMANDS
            if name
            not in (
                *("node", "agent", "plugin", "keys", "encryption-key", "spark"),
                *("completion", "import", "stream"),
            )
        ),
        ("import", "shelve", "sessions", "{}"),
        ("backup", "maps", "{}"),
        ("backup-restore", "maps", "{}"),
        ("diff", "maps", "{}"),
        ("restore", "maps", "--to", "{}"),
        ("repair", "maps", "--to", "{}"),
        ("node", "start", "--url", "{}"),
        ("stream", "stat", "{}"),
    ],
)
def test_an_empty_url_is_wrong_usage(run: Run, words: tuple[str, ...], value: str) -> None:
    """The text names the value to pass."""
    ended = run(*(word.format(value) for word in words))
    assert ended.code == 2
    assert (
        "is empty" if not value else "which is blank"
    ) in ended.err and 'as in "/var/lib/maps"' in ended.err


def _foreground() -> None:
    """In a child: handle Ctrl-C by default. A shell makes jobs in the background ignore it, also
    these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("module", "words"), [("click", ["--help"]), ("rich", ["stat", "/tmp/none"])]
)
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(
    tmp_path: Path, module: str, words: list[str]
) -> None:
    """In the first half second. The module is an example: it sends the signal while it is
    imported."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "rewrite_cli.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=_foreground,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: stopped\n")


@pytest.mark.parametrize(
    ("before", "handler"),
    [("mine = lambda *_: None; signal.signal(signal.SIGINT, mine)", "mine"),
     ("", "signal.default_int_handler")],
    ids=["a handler of its own", "none"],
)  # fmt: skip
def test_importing_the_command_line_leaves_a_programs_own_handler_alone(
    before: str, handler: str
) -> None:
    program = (
        f"import signal\n{before}\nimport rewrite_cli.cli\n"
        f"assert signal.getsignal(signal.SIGINT) is {handler}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, preexec_fn=_foreground)


def test_without_a_command_the_help_is_no_error(run: Run) -> None:
    ended = run()
    assert ended.code == 2 and "Commands:" in ended.err
    assert "Error" not in ended.err and ended.err.count("Usage:") == 1


def test_settings_of_a_closed_home_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After `runuser -u imap-wal`, HOME is still that of root."""

    def refused(path: Path, **_: object) -> bool:
        if path.is_absolute():
            raise PermissionError(path)
        return False

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "is_file", refused)
    assert config_file.find() is None


def test_doctor_creates_no_folder(run: Run, tmp_path: Path) -> None:
    """It reads; a wrong URL stays without a folder."""
    ended = run("doctor", str(tmp_path / "absent"))
    assert ended.code == 0 and "there is no folder" in ended.out
    assert not (tmp_path / "absent").exists()


def test_claim_without_a_terminal_names_an_option_that_exists(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path / "log"), node="n1") as store:
        store.map("m")["k"] = 1
    ended = run("claim", str(tmp_path / "log"), "--force")
    assert ended.code == 2 and "--yes" in ended.err and "--dry-run" not in ended.err


@every(4)
@pytest.mark.parametrize("command", ["stat", "ls", "verify", "dump", "doctor"])
def test_a_storage_that_cannot_be_reached_is_named(run: Run, command: str) -> None:
    """With its URL, once, and what to do."""
    ended = run(command, "http://127.0.0.1:1/maps")
    assert ended.code in (1, 3)
    said = " ".join(f"{ended.out} {ended.err}".split())
    assert said.count("http://127.0.0.1:1/maps") == 1, said
    assert "cannot be reached" in said
    assert "check that the URL is right" in said


def test_a_warning_about_a_log_is_printed_once(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some commands open their selection again for each step."""
    monkeypatch.setattr("rewrite_cli.console.selection.doubts", lambda _: ["of another user"])
    for words in (("prune", url, "--yes"), ("claim", url, "--force", "--yes"), ("ls", url)):
        for _ in range(2):
            assert run(*words).err.count("warning: of another user") == 1, words
