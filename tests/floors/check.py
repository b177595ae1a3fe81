"""Finds what breaks the rule of floors: files without a place, imports that point up, circles of files."""

from collections import deque
from collections.abc import Iterable, Iterator

from floors.tree import Import, Sources, Tree

Graph = dict[str, dict[str, Import]]


def problems(tree: Tree) -> list[str]:
    """Everything that is wrong with a tree, each as one line that names the import; empty if nothing is."""
    sources = tree.read(tree.root)
    found = [*_misplaced(tree, sources), *_upward(tree, sources), *_circles(sources)]
    return [f"{tree.name}: {problem}" for problem in found]


def _misplaced(tree: Tree, sources: Sources) -> Iterator[str]:
    """Every file is on exactly one floor, and every member of a floor is there."""
    for file in sorted(sources.files):
        floors = [floor.name for floor in tree.floors if floor.holds(file)]
        if not floors:
            yield f"{file} is on no floor"
        elif len(floors) > 1:
            yield f"{file} is on several floors: {', '.join(floors)}"
    for floor in tree.floors:
        for member in floor.members:
            if not any(floor._replace(members=(member,)).holds(file) for file in sources.files):
                yield f"floor {floor.name} names {member}, which is not there"


def _upward(tree: Tree, sources: Sources) -> Iterator[str]:
    for each in _first_of_each(sources):
        importer, imported = _height(tree, each.importer), _height(tree, each.imported)
        if importer is not None and imported is not None and importer < imported:
            lower, upper = tree.floors[importer].name, tree.floors[imported].name
            yield f"{_describe(each)}, but {lower} is below {upper}"


def _first_of_each(sources: Sources) -> Iterator[Import]:
    """The first import of each file, where a file imports it in several lines."""
    reported: set[tuple[str, str]] = set()
    for each in sorted(sources.imports, key=lambda each: (each.importer, each.line)):
        if (each.importer, each.imported) not in reported:
            reported.add((each.importer, each.imported))
            yield each


def _height(tree: Tree, file: str) -> int | None:
    return next((height for height, floor in enumerate(tree.floors) if floor.holds(file)), None)


def _describe(each: Import) -> str:
    return f"{each.importer}:{each.line} imports {each.imported}"


def _circles(sources: Sources) -> Iterator[str]:
    """One shortest circle for every file that is in any, each reported once."""
    graph: Graph = {}
    for each in sorted(sources.imports):
        if not each.is_reexport and each.importer != each.imported:
            graph.setdefault(each.importer, {}).setdefault(each.imported, each)
    reported: set[str] = set()
    for file in sorted(graph):
        circle = [] if file in reported else _shortest_circle(graph, file)
        if circle:
            reported |= {each.importer for each in circle}
            yield "a circle: " + ", ".join(_describe(each) for each in circle)


def _shortest_circle(graph: Graph, start: str) -> list[Import]:
    """The imports of a shortest way from a file back to itself; none if there is no way."""
    reached_by: dict[str, Import] = {}
    queue = deque([start])
    while queue and start not in reached_by:
        for each in graph.get(queue.popleft(), {}).values():
            if each.imported not in reached_by:
                reached_by[each.imported] = each
                queue.append(each.imported)
    return list(reversed(list(_way_back(reached_by, start))))


def _way_back(reached_by: dict[str, Import], start: str) -> Iterable[Import]:
    file = start
    while file in reached_by:
        each = reached_by[file]
        yield each
        file = each.importer
        if file == start:
            return
