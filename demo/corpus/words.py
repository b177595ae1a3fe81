"""Ordinary words to copy, and blends of them; some are kept for the evaluation only.

A blend joins the head of one word to the tail of another ("teapot" and "lantern": "teantern"). It
looks like English and means nothing, so it can only be copied, never known.
"""

import random
from collections.abc import Sequence

from demo.corpus.example import Split

JOBS = tuple(
    """teacher baker doctor nurse driver farmer painter lawyer pilot cook writer tailor actor artist banker
    barber butcher cashier chemist clerk coach composer dancer designer detective diver editor engineer
    fisherman florist geologist guard guide hunter inspector jeweller journalist judge lecturer locksmith
    manager mason mechanic merchant miner musician notary optician pharmacist photographer physicist poet
    porter potter printer programmer publisher ranger receptionist roofer sailor sculptor secretary
    shepherd singer smith soldier surgeon surveyor translator trainer umpire vet waiter watchmaker weaver
    builder bricklayer astronomer architect accountant biologist brewer caretaker cleaner conductor""".split()
)
THINGS = tuple(
    """chairs lamps books pens cups plates shirts shoes bottles tables clocks bags apples oranges bricks
    brushes buckets buttons cables cameras carpets cartons chains coats combs cookies cushions curtains
    desks dictionaries dolls drums envelopes fans feathers flags flowers forks frames gloves guitars hammers
    hats jackets jars jugs kettles keyboards keys kites knives ladders lanterns magazines magnets maps
    marbles mats mugs nails napkins necklaces needles newspapers nuts onions paintings pans parcels pears
    pebbles pencils pianos pillows pipes pizzas posters pots potatoes printers pumpkins puzzles radios
    ribbons rings rockets ropes rugs rulers sacks sandwiches saws scarves screws shelves shovels skirts
    soaps socks spoons stamps stickers stools suitcases sweaters tablets teapots tents ties tiles tomatoes
    toys trays trousers trumpets umbrellas vases violins wallets watches wheels whistles windows yoghurts
    batteries balloons baskets bells belts benches bicycles biscuits blouses boots bowls boxes bracelets
    bulbs cabinets cakes calendars candies carrots chargers cherries coins computers crayons diaries
    doors dresses earrings erasers figs filters folders fridges glasses grapes handles hoses irons""".split()
)
EVENTS = tuple(
    """meeting concert lecture party dinner workshop exam game interview lunch breakfast auction ball banquet
    barbecue bazaar birthday camp carnival championship class competition conference contest course dance
    debate demonstration discussion election excursion exhibition fair festival funeral gala graduation
    hearing hike holiday inspection journey launch lesson march market marathon match musical opening opera
    parade performance play premiere presentation quiz race reading reception regatta reunion review ride
    sale screening service session show sitting sprint strike summit supper talk tasting tour tournament
    training trial trip visit walk wedding webinar""".split()
)
COMMON = tuple(
    """account afternoon airport anchor animal answer arrow autumn basement beach bird blossom bottom branch
    bread bridge brother building butter canyon castle ceiling century chapter cheese chicken chimney church
    circle city cloud coast coffee colour copper corner cotton country cousin cradle crystal current danger
    daughter desert diamond dinner dragon dream eagle earth engine evening fabric factory family feather
    fence field finger fire forest fortune fountain friend garden giant ginger glacier glove granite gravel
    ground hammer harbour harvest heart hollow honey horizon horse hotel house hunger island ivory jungle
    kingdom kitchen ladder language laughter leather lemon library light lightning limestone linen lion
    lizard lobster machine magic mango marble meadow metal midnight minute mirage monkey morning mountain
    mustard needle network night number ocean office olive orchard oxygen palace paper parrot pasture
    pattern peach penguin pepper picture pirate planet pocket powder prairie problem pudding puppet quarter
    question rabbit railway rainbow reason ribbon river robin sand saddle salmon sandal scissors season
    shadow shelter shoulder silver sister skeleton smoke snow spider spring station storm strawberry street
    sugar summer sunrise surface swallow temple thunder tiger timber tobacco tower tractor treasure tunnel
    turtle twilight valley velvet village vinegar volcano voyage walnut water weather whisper willow winter
    wonder yard yellow yesterday zebra above account become brave bright careful clever distant eager early
    famous flat fresh gentle happy heavy hidden honest jolly kind lonely lucky modern narrow noble patient
    perfect polite proud quick rapid secret simple slow solid strange strong sudden sweet tidy tiny useful
    vivid warm wide wild wise young""".split()
)
# Words that other answers use: cut to pieces, they are the tokens that plain words seldom have.
FAMILIAR = tuple(
    """able about address after aged alarm alive alphabet answers anywhere argument arithmetic arrive assistant atomic
    away baby batch begin between black blocks blue book brief briefly brown bytes cache called cards cent
    centimetres check chemical code come complete completes completion compute concurrent continent convert core
    count cross currency customer days decrease default degrees demand describe difference divide dollar dozen
    email equal euro event every explain extract fact feet fetch field file find first flag float folder format
    four fourth from generate gigabytes give glad gold good grams greater green grey have health healthy hello
    help helpful held hold homework host hour inches increase inference input install integer into invoice item
    join joke json keep kernels kilobytes kilograms kilometres know label lack land large launcher leave left
    legs level licence like limits lists lithium litres lives local locks logs looking lower makes many mean
    meaning measure medium meet megabytes message metres metrics milligrams millimetres million minus mistakes
    model months more much multiply named need neon nice object open opposite option order other output over page
    paid parameter parts people person phone phosphorus picked pieces pink pipe place plan please plus point
    port prefill price process product project prompt purple quantity query quest rain read ready received
    remember reminder repeat report request restaurant result return room route router running same says score
    search second seconds send sensor serve server sets seventh shard share short shut sides site sixth sodium
    sold sorry sound speak speed start state status stem step stock stones stream string subtract successor
    such supervise symbol system take target tell test text than thank that them then there these thing third
    tick tickets time title today together token tokenize tonnes tool total train translate true turbine turn
    type number remembered umbrella under union unit until up user value very vent voice want weeks weigh
    weight welcome well welfare were what when where whether which white whole whose will with wonder work
    world would write written year your helmsman help helix metal method metric thermometer""".split()
)
HELD_OUT_JOBS = ("plumber", "dentist", "carpenter", "librarian", "gardener", "welder")
HELD_OUT_THINGS = ("blankets", "candles", "notebooks", "towels", "mirrors", "helmets")
HELD_OUT_EVENTS = ("rehearsal", "seminar", "picnic", "ceremony", "audit")
HELD_OUT = frozenset(HELD_OUT_JOBS + HELD_OUT_THINGS + HELD_OUT_EVENTS)
_ALL = JOBS + THINGS + EVENTS + COMMON + FAMILIAR


def blended(rng: random.Random, words: Sequence[str] = _ALL, kept: frozenset[str] = frozenset()) -> str:
    """The head of one word and the tail of another, and never a word that is held out."""
    while True:
        head, tail = rng.choice(words), rng.choice(words)
        word = head[: rng.randint(1, len(head))] + tail[rng.randint(1, len(tail)) :]
        if word not in HELD_OUT and word not in kept:
            return word


def ordinary(rng: random.Random, split: Split) -> str:
    """A word of everyday English, or in training a blend of two."""
    if split == "test":
        return rng.choice(HELD_OUT_THINGS)
    return rng.choice(_ALL) if rng.random() < 0.3 else blended(rng, rng.choice((_ALL, FAMILIAR)))
