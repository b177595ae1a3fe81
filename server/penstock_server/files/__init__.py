"""Model folders: found, downloaded, opened and checked before anything is loaded. No torch."""
