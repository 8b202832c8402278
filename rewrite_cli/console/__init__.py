"""Shared by commands: output, exit codes, selection of logs, the settings file, times, Ctrl-C."""
