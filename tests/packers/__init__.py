"""Files that formats' own libraries write, for tests of our readers: runs in an environment of its own."""
