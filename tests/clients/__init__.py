"""Scripts that use one client each, run by tests/e2e/test_other_clients.py in an environment of the client's own."""
