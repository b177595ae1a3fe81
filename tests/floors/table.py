"""The floors of every tree of sources, lowest first. A new file belongs to exactly one."""

from floors.tree import Tree

TREES: tuple[Tree, ...] = ()
