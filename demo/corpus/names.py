"""Names and values to copy: invented ones for training, others for the evaluation.

Training sees syllables in endless combination, so that it learns to copy rather than to know.
"""

import random

from demo.corpus.example import Split
from demo.corpus.words import blended

_STARTS = tuple(
    """b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z th sk x bl cr y""".split()
)
_VOWELS = tuple("""a e i o u a e i o ai ea ia io ou ee""".split())
_ENDS = ("", "", "", "n", "r", "l", "s", "m", "k", "t", "nd", "rt", "ck", "ng", "x", "d")
_KNOWN = tuple(
    """Anna Ben Carla David Eva Frank Grace Hugo Ida Jack Karen Leo Maria Nina Otto Paula Robert
    Sarah Tom Ursula Victor Wendy Alice Bob Peter Laura James Linda Michael Emma Adam Agnes Albert
    Alma Amelia Andrew Angela Anton Arthur Astrid Barbara Beatrice Bernard Boris Brenda Bruno
    Camilla Carlos Caroline Cecilia Charles Charlotte Christine Clara Claude Conrad Cornelia Cyril
    Daniel Daphne Deborah Dennis Diana Dominic Dora Dorothy Edgar Edith Edmund Edward Eleanor Elena
    Elias Elizabeth Elliot Emil Eric Ernest Esther Eugene Felix Fiona Florence Francis Gabriel
    George Gerald Gilbert Gloria Gordon Greta Hannah Harold Harriet Hector Henry Herbert Hilda
    Howard Irene Isaac Isabel Ivan Jacob Jane Jasper Jeremy Jessica Joan John Jonas Joseph Julia
    Kenneth Kevin Klara Leonard Lewis Lillian Louis Lucy Luis Magnus Malcolm Manuel Margaret Marcus
    Marian Martin Matilda Maurice Max Mildred Miriam Mohammed Monica Nathan Nicholas Nora Norman
    Oscar Pamela Patrick Paul Philip Phoebe Rachel Ralph Raymond Rebecca Richard Roger Rosa Rupert
    Ruth Samuel Sebastian Sheila Sofia Stella Stephen Susan Sylvia Theodore Theresa Thomas Timothy
    Valerie Vincent Violet Walter William Winston Yvonne Aisha Akira Anil Carmen Chen Deepak Farah
    Hassan Hiroshi Ibrahim Jamal Juan Kenji Leila Li Lin Lupe Mustafa Nadia Omar Pablo Rana Rosario
    Salma Sanjay Sven Tomas Vera Wei Yan Zoe""".split()
)
_HELD_OUT_FIRST = tuple(
    """Oliver Fatima Yusuf Chloe Mateo Ingrid Haruto Priya Kwame Svetlana Diego Zanele Bjorn Amira
    Lucas Mei Tariq Helena Andre Noor Gustavo Freya Ravi Simone Olga Viktor Imani Pedro""".split()
)
_HELD_OUT_LAST = tuple(
    """Okafor Lindqvist Moreau Tanaka Hernandez Novak Schmidt Abadi Kowalski Mbeki Rossi Andersen
    Petrov Silva Haddad Nguyen Brandt Costa Ferreira Yamamoto""".split()
)
_HELD_OUT_PLACES = tuple(
    """Utrecht Salzburg Nagoya Porto Leipzig Tampere Gdansk Marseille Oaxaca Bergen Lyon Turin
    Valencia Durban Mysore Tromso Split Cusco Adelaide Halifax""".split()
)
_PLACES = tuple(
    """Paris London Berlin Madrid Rome Oslo Tokyo Cairo Lima Vienna Boston Chicago Hamburg Munich
    Milan Geneva Zurich Seattle Dublin Prague Aberdeen Algiers Amsterdam Ankara Antwerp Athens
    Atlanta Auckland Austin Avignon Baghdad Baltimore Bangkok Barcelona Basel Bath Beirut Belfast
    Belgrade Birmingham Bogota Bologna Bordeaux Bremen Brisbane Bristol Brussels Bucharest Budapest
    Calgary Cambridge Canberra Caracas Cardiff Casablanca Cologne Copenhagen Cordoba Cork Dakar
    Dallas Damascus Delhi Denver Detroit Dijon Dresden Edinburgh Essen Exeter Florence Frankfurt
    Fukuoka Ghent Glasgow Granada Graz Grenoble Hanoi Havana Helsinki Houston Innsbruck Istanbul
    Jakarta Kampala Kiel Krakow Kyoto Lagos Leeds Lille Lisbon Liverpool Ljubljana Lucerne Luxor
    Lviv Maastricht Malaga Manchester Manila Melbourne Memphis Miami Minsk Mombasa Montreal Moscow
    Mumbai Nairobi Nantes Naples Nashville Nice Nottingham Odessa Orlando Osaka Ottawa Oxford
    Palermo Perth Phoenix Pisa Plymouth Portland Potsdam Quebec Quito Reims Riga Rotterdam Santiago
    Sapporo Seoul Sevilla Sheffield Sofia Stockholm Strasbourg Stuttgart Sydney Tallinn Tangier
    Toledo Toronto Toulouse Trieste Tunis Uppsala Vancouver Venice Verona Vilnius Turkey Thailand
    Germany Poland Portugal Sweden Hungary Finland France Austria Australia Mexico Korea Vietnam
    Colombia Nepal Indonesia Chile India Japan China Russia Brazil Warsaw Winnipeg York""".split()
)
HELD_OUT = frozenset(_HELD_OUT_FIRST + _HELD_OUT_LAST + _HELD_OUT_PLACES)


def _syllables(rng: random.Random, count: int) -> str:
    parts = (rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(count))
    return "".join(parts).capitalize()


def invented(rng: random.Random, split: Split) -> str:
    """A word that means nothing; the evaluation's are longer than most."""
    return _syllables(rng, rng.choices((1, 2, 3), (1, 4, 2))[0] if split == "train" else 2)


def _trained(rng: random.Random, known: tuple[str, ...]) -> str:
    """A real name, a blend of two, or an invented one."""
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(known)
    return blended(rng, known, HELD_OUT) if roll < 0.65 else invented(rng, "train")


def first_name(rng: random.Random, split: Split) -> str:
    """A given name."""
    if split == "test":
        return rng.choice(_HELD_OUT_FIRST)
    return _trained(rng, _KNOWN)


def full_name(rng: random.Random, split: Split) -> str:
    """A given name and a family name."""
    if split == "test":
        return f"{rng.choice(_HELD_OUT_FIRST)} {rng.choice(_HELD_OUT_LAST)}"
    return f"{first_name(rng, split)} {first_name(rng, split)}"


def place(rng: random.Random, split: Split) -> str:
    """A town."""
    if split == "test":
        return rng.choice(_HELD_OUT_PLACES)
    return _trained(rng, _PLACES)
