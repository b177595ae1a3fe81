"""Makes the demo model from nothing: corpus, tokenizer, training, evaluation.

Takes one to two hours on one core; stopping and starting again goes on where it stopped.
"""

import argparse
import logging
from pathlib import Path

from tokenizers import Tokenizer

from demo import checkpoint, evaluate, tokenizer, train

log = logging.getLogger("demo.build")


def _tokenizer(folder: Path, seed: int, resuming: bool) -> Tokenizer:
    if not resuming:
        tokenizer.save(tokenizer.train(seed), folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def build(folder: Path, work: Path, recipe: train.Recipe) -> None:
    """Writes every shipped file into `folder`."""
    work.mkdir(parents=True, exist_ok=True)
    resuming = (work / checkpoint.NAME).exists()
    words = _tokenizer(folder, recipe.seed, resuming)
    log.info("tokenizer of %d tokens, training for %d steps", words.get_vocab_size(), recipe.steps)
    train.ship(train.train(words, recipe, work), folder)


def main() -> None:
    """Builds, then evaluates and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=evaluate.FOLDER)
    parser.add_argument("--work", type=Path, default=Path("target/demo-model"))
    parser.add_argument("--steps", type=int, default=train.Recipe.steps)
    parser.add_argument("--seed", type=int, default=train.Recipe.seed)
    parser.add_argument("--count", type=int, default=500, help="questions in a full share")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(args.folder, args.work, train.Recipe(seed=args.seed, steps=args.steps))
    scores = evaluate.evaluate(args.folder, args.count)
    text = evaluate.report(scores, args.count, evaluate.SEED)
    evaluate.REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
