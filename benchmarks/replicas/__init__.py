"""Replicas of a model: where requests go, and what that is worth."""
