"""What commands share: output, exit codes, selection of logs, the settings file, times, Ctrl-C."""
