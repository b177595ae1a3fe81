"""`python -m peers`: what other projects test servers with, run against ours, and a table of it in docs/clients.md."""
