"""The modules that every folder may use: settings, errors, log lines, the tie to the launcher. No torch."""
