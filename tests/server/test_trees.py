"""Drafts that are trees: the tokens are those without drafts, and each guess is what a head makes of the way to it."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_model import counting_model, medusa_heads
from driver import execute_on, make_engine
from family_models import CASES
from open_spans import (
    DRAWN,
    EVERYTHING,
    MAX_DRAFTS,
    NUM_BLOCKS,
    NUM_COMPARED,
    SIZES,
    Told,
    check_same,
    drafting,
    play,
    prompt,
)
from penstock_server.base.errors import StartError
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.head_drafter import HeadDrafter
from penstock_server.engine.likeliest import Guess
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.medusa_drafter import MedusaDrafter
from penstock_server.engine.paying_drafter import PayingDrafter
from penstock_server.engine.plan import Admit, Drafts, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.token_tree import ROOT, TokenTree, drafted_tree, is_open, right_path
from penstock_server.engine.tree_growth import TreeGrowth, product_tree, static_tree
from test_eagle import likeliest_of, random_head

PLAIN = [SamplingParams(), DRAWN, EVERYTHING["drawn"], SamplingParams(temperature=0.6, seed=3)]
# So many tokens of a tree; blocks have four.
SIZE = 9


class Branching(Drafter):
    """Knows what comes, and hides it in a tree of random form among tokens that are wrong."""

    def __init__(self, engine: Engine, expected: list[Told], rng: random.Random) -> None:
        self._states = engine.slots.states
        self._expected, self._rng = expected, rng
        self.trees: list[TokenTree] = []
        self.paths: list[Sequence[int]] = []

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        drafts = {slot: self._tree(slot, most) for slot, most in wanted.items()}
        self.trees += [tree for tree in drafts.values() if isinstance(tree, TokenTree)]
        return drafts

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self.paths.append(path)

    def _tree(self, slot: int, size: int) -> tuple[int, ...]:
        right = self._expected[slot].ids[self._states[slot].length - len(prompt(slot)) :]
        tokens: list[int] = []
        parents: list[int] = []
        last, num_right = ROOT, 0
        for number in range(size):
            if num_right < len(right) and self._rng.random() < 0.5:
                tokens.append(right[num_right])
                parents.append(last)
                last, num_right = number, num_right + 1
            else:
                parent = self._rng.randrange(ROOT, number)
                parents.append(parent)
                tokens.append(self._wrong(right, parents, tokens, parent))
        return drafted_tree(tokens, parents)

    def _wrong(self, right: list[int], parents: list[int], tokens: list[int], parent: int) -> int:
        """A token that its siblings are not, and that will not come."""
        taken = {token for token, of in zip(tokens, parents, strict=False) if of == parent}
        return next(
            token for token in iter(lambda: self._rng.randrange(300), -1) if token not in {*taken, *right}
        )


_WITHOUT_GROUPS: dict[str, Any] = {"head_dim": None, "num_key_value_heads": None}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 16}),
    "norms of queries and keys": ("qwen3", {"head_dim": 16}),
    "learned positions": ("opt", {"hidden_size": 64, **_WITHOUT_GROUPS, "ffn_dim": 132}),
    "experts": ("mixtral", {"head_dim": 16}),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_right_in_a_tree_counts(saved_model: Callable[..., Any], family: str, dtype: str) -> None:
    name, options = FAMILIES[family]
    sizes = {**SIZES, "num_blocks": 10 * NUM_BLOCKS}
    engine = make_engine(saved_model(name, **options).folder, dtype=dtype, is_poisoned=True, **sizes)
    assert engine.graphs is not None
    assert engine.graphs.takes_trees
    expected = play(engine, PLAIN, None)
    for seed in range(3):
        drafter = engine.drafter = Branching(engine, expected, random.Random(seed))
        got = play(engine, PLAIN, SIZE)
        # In 16 bits another order of a sum may change a token.
        if dtype == "float32":
            check_same(got, expected)
        assert len(drafter.trees) > 5
        assert any(number != place for path in drafter.paths for place, number in enumerate(path)), (
            "none moved"
        )
        assert max(map(len, drafter.paths)) > 2
    assert engine.graphs.sizes, "steps are recorded"


@pytest.mark.parametrize(
    ("model", "is_invariant"),
    [
        ({"family": "mistral", "sliding_window": 6, "head_dim": 16}, False),
        (CASES["bloom"], False),
        (CASES["deepseek_v3"], False),
        (CASES["lfm2"], False),
        ({"head_dim": 16}, True),
    ],
    ids=["window", "slopes", "latents", "states", "batch invariant"],
)
def test_what_cannot_see_a_tree_is_asked_for_chains(
    saved_model: Callable[..., Any], model: dict[str, Any], is_invariant: bool
) -> None:
    engine = make_engine(saved_model(**model).folder, batch_invariant=is_invariant, **SIZES)
    assert engine.graphs is not None
    assert not engine.graphs.takes_trees


def test_a_tree_knows_what_its_tokens_see() -> None:
    #     0    1
    #    2 4   3
    #      5
    tree = TokenTree([7, 8, 9, 7, 3, 4], [ROOT, ROOT, 0, 1, 0, 4])
    assert [*tree] == [7, 8, 9, 7, 3, 4]
    assert tree.depths == [1, 1, 2, 2, 2, 3]
    seen = [
        [number - bit for bit in range(number + 1) if bits >> bit & 1]
        for number, bits in enumerate(tree.seen)
    ]
    assert seen == [[0], [1], [2, 0], [3, 1], [4, 0], [5, 4, 0]]
    assert all(bits >> number + 1 == -1 for number, bits in enumerate(tree.seen)), (
        "all that is before the tree"
    )
    assert all(-(2**31) <= bits < 2**31 for bits in TokenTree([1] * 31, [ROOT] * 31).seen)
    assert drafted_tree([7, 8], [ROOT, 0]) == (7, 8)
    assert not isinstance(drafted_tree([7, 8], [ROOT, 0]), TokenTree)


@pytest.mark.parametrize(
    ("chosen", "bad", "path", "goes_on"),
    [
        ([7, 3, 0, 0, 0, 4, 1], (), [0, 4, 5], False),
        ([7, 3, 0, 0, 0, 4, 1], (5,), [0], True),
        ([8, 0, 7, 0, 5, 0, 0], (), [1, 3], False),
        ([6, 3, 0, 0, 0, 4, 1], (), [], True),
        ([7, 3, 0, 0, 0, 4, 1], (0,), [], True),
        ([7, 9, 0, 4, 0, 0, 0], (), [0, 2], False),
    ],
)
def test_the_right_way_is_that_of_what_was_chosen(
    chosen: list[int], bad: tuple[int, ...], path: list[int], goes_on: bool
) -> None:
    tree = TokenTree([7, 8, 9, 7, 3, 4], [ROOT, ROOT, 0, 1, 0, 4])
    are_finite = [row not in bad for row in range(7)]
    assert right_path(tree, chosen, are_finite) == path
    assert is_open(tree, path) == goes_on
    assert right_path((7, 3), [7, 3, 1], [True] * 3) == [0, 1]
    assert is_open((7, 3), [0])
    assert not is_open((7, 3), [0, 1])


def test_a_tree_of_levels_has_the_likeliest_ways() -> None:
    levels = [[Guess(1, 0.6), Guess(2, 0.3)], [Guess(3, 0.5), Guess(4, 0.4)], [Guess(5, 0.9)]]
    ways: dict[tuple[int, ...], float] = {(): 1.0}
    for level in levels:
        ways |= {(*way, it.token_id): chance * it.chance for way, chance in ways.items() for it in level
                 if len(way) == levels.index(level)}  # fmt: skip
    del ways[()]
    ranked = sorted(ways, key=lambda way: -ways[way])
    for size in range(1, len(ranked) + 3):
        assert sorted(ways_of(product_tree(levels, size))) == sorted(ranked[:size])
    assert not isinstance(product_tree([levels[0][:1], levels[1][:1]], 2), TokenTree)


def test_a_tree_of_a_given_form_has_its_first_ways() -> None:
    levels = [[Guess(1, 0.1), Guess(2, 0.9)], [Guess(3, 0.5)]]
    choices = [(0,), (0, 0), (1,), (0, 1), (1, 0), (1, 0, 0)]
    assert ways_of(static_tree(levels, choices, 16)) == [(1,), (1, 3), (2,), (2, 3)]
    assert ways_of(static_tree(levels, choices, 3)) == [(1,), (1, 3), (2,)]


def test_a_growth_goes_on_where_more_may_follow() -> None:
    growth = TreeGrowth()
    sure = growth.add(ROOT, [Guess(1, 0.9), Guess(2, 0.05)])
    assert growth.worth_going_on(sure, 4, 2) == [0], (
        "a chain of four is likelier than anything behind the other"
    )
    torn = TreeGrowth()
    both = torn.add(ROOT, [Guess(1, 0.3), Guess(2, 0.5)])
    assert torn.worth_going_on(both, 4, 2) == [1, 0]
    assert torn.worth_going_on(both, 4, 1) == [1]
    late = growth.add(1, [Guess(3, 0.5), Guess(4, 0.5)])
    assert growth.worth_going_on(late, 2, 2) == [], "two others are likelier than what is behind these"
    assert growth.likeliest(2) == (1, 2)
    assert isinstance(growth.likeliest(2), TokenTree)


def ways_of(drafted: tuple[int, ...]) -> list[tuple[int, ...]]:
    parents = drafted.parents if isinstance(drafted, TokenTree) else range(-1, len(drafted) - 1)
    ways: list[tuple[int, ...]] = []
    for token, parent in zip(drafted, parents, strict=True):
        ways.append((*(ways[parent] if parent != ROOT else ()), token))
    return ways


def test_each_guess_of_a_head_follows_from_the_way_to_it(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    """The guesses equal those of the training code after the same path, whatever other guesses are in the tree."""
    branches = 3
    folder, head = random_head(tmp_path / "head")
    saved = saved_model(head_dim=16)
    engine = drafting(saved.folder, folder, draft_branches=branches)
    tokens, count = [5, *range(200, 214)], 0
    admitted = [Admit(0, tokens, len(tokens), list(range(NUM_BLOCKS)), SamplingParams())]
    execute = execute_on(engine)
    known = [*tokens, *execute(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, len(tokens))])).sampled_ids]
    for _ in range(3):
        assert isinstance(engine.drafter, HeadDrafter)
        before = {slot: list(kept) for slot, kept in engine.drafter._kept._runs.items()}
        with torch.inference_mode():
            drafted = engine.drafter.draft_trees([], {0: SIZE})[0]
        engine.drafter._kept._runs = before
        assert len(drafted) == SIZE
        for way in ways_of(drafted):
            likeliest = likeliest_of(saved.oracle, head, known, len(way), way, branches)
            assert way[-1] in likeliest[-1], way
            count += len(way) > 1
        outcome = execute(Plan(1, 2, spans=[Span(0, len(known) - 1, 1)], open_drafts={0: SIZE}))
        assert outcome.num_drafted == {0: SIZE}
        known += outcome.sampled_ids
    assert count > 5


def test_heads_that_are_unsure_gain_by_a_tree(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    """Both of its guesses are there, of which a chain has the right one half of the time."""
    model = counting_model(saved_model, tmp_path / "model", head_dim=16)
    folder = medusa_heads(model, tmp_path / "heads", is_unsure=True)
    num_steps = {}
    for branches in (1, 2):
        engine = drafting(model, folder, draft_branches=branches)
        assert isinstance(engine.drafter, MedusaDrafter)
        got = play(engine, [SamplingParams()] * 2, SIZE)
        for it in got:
            assert it.ids[:NUM_COMPARED] == [*range(it.ids[0], it.ids[0] + NUM_COMPARED)]
        num_steps[branches] = sum(it.num_steps for it in got)
    assert num_steps[2] < 0.8 * num_steps[1]


def test_the_tree_that_heads_were_published_with_is_theirs(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = counting_model(saved_model, tmp_path / "model", head_dim=16)
    folder = medusa_heads(model, tmp_path / "heads", is_unsure=True)
    _say(folder, [[0], [1], [0, 0], [1, 0], [1, 1]])
    engine = drafting(model, folder)
    seen: list[tuple[int, ...]] = []
    draft_trees = engine.drafter.draft_trees

    def watched(spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        drafts = draft_trees(spans, wanted)
        seen.extend(tree.parents for tree in drafts.values() if isinstance(tree, TokenTree))
        return drafts

    engine.drafter.draft_trees = watched  # type: ignore[method-assign]
    play(engine, [SamplingParams()], SIZE)
    assert set(seen) == {(ROOT, ROOT, 0, 1, 1)}
    chain = drafting(model, folder, draft_branches=1)
    assert isinstance(chain.drafter, MedusaDrafter)
    assert chain.drafter._branches == 1


@pytest.mark.parametrize("choices", [3, [3], [[]], [["0"]], [[-1]], [[16]], [[True]]])
def test_a_tree_that_is_none_is_refused(
    saved_model: Callable[..., Any], tmp_path: Path, choices: object
) -> None:
    model = counting_model(saved_model, tmp_path / "model", head_dim=16)
    folder = medusa_heads(model, tmp_path / "heads")
    _say(folder, choices)
    with pytest.raises(StartError, match=r"medusa_choices is .*; expected a list of lists of whole numbers"):
        drafting(model, folder)


def _say(folder: Path, choices: object) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "medusa_choices": choices}))


def test_a_way_to_the_end_of_a_tree_is_no_wrong_draft(saved_model: Callable[..., Any]) -> None:
    """Else a tree, of which some tokens are wrong always, would soon not be drafted any more."""
    engine = make_engine(saved_model(head_dim=16).folder, **SIZES)
    expected = play(engine, PLAIN[:1], None)
    branching = Branching(engine, expected, random.Random(5))
    engine.drafter = PayingDrafter(branching)
    check_same(play(engine, PLAIN[:1], MAX_DRAFTS), expected)
    paying = engine.drafter
    assert unlimited(paying) is branching
    paying.rates.clear()
    paying._drafts = {0: TokenTree([1, 2, 3], [ROOT, ROOT, 1])}
    before = paying.rates.expected(0, 1)
    paying.keep(0, [1, 2])
    paying.accept(0, 2)
    behind = paying.rates.expected(0, 1)
    assert behind > before
    paying.keep(0, [1])
    paying.accept(0, 1)
    assert paying.rates.expected(0, 1) < behind
