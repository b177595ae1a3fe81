"""Folders of LoRA adapters as PEFT writes them: read and checked without torch."""
