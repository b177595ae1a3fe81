"""What every floor may use: settings, errors, log lines, the tie to the launcher. No torch."""
