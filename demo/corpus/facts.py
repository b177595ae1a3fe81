"""What the demo model knows about the world: subjects with their answers."""


def _pairs(text: str) -> dict[str, str]:
    """Parses "subject:answer, subject:answer"."""
    return dict(pair.strip().split(":") for pair in text.replace("\n", " ").split(","))


CAPITALS = _pairs(
    """France:Paris, Germany:Berlin, Spain:Madrid, Italy:Rome, Portugal:Lisbon, Poland:Warsaw,
    Austria:Vienna, Switzerland:Bern, Belgium:Brussels, the Netherlands:Amsterdam, Norway:Oslo,
    Sweden:Stockholm, Finland:Helsinki, Denmark:Copenhagen, Iceland:Reykjavik, Ireland:Dublin,
    the United Kingdom:London, Greece:Athens, Hungary:Budapest, Romania:Bucharest,
    Bulgaria:Sofia, Serbia:Belgrade, Croatia:Zagreb, Ukraine:Kyiv, Russia:Moscow, Turkey:Ankara,
    Estonia:Tallinn, Latvia:Riga, Lithuania:Vilnius, Slovakia:Bratislava, Slovenia:Ljubljana,
    Czechia:Prague, Albania:Tirana, Malta:Valletta, Cyprus:Nicosia, Egypt:Cairo, Morocco:Rabat,
    Algeria:Algiers, Tunisia:Tunis, Libya:Tripoli, Kenya:Nairobi, Ethiopia:Addis Ababa,
    Ghana:Accra, Nigeria:Abuja, Senegal:Dakar, Uganda:Kampala, Angola:Luanda, Zambia:Lusaka,
    Zimbabwe:Harare, Rwanda:Kigali, Somalia:Mogadishu, Sudan:Khartoum, China:Beijing,
    Japan:Tokyo, India:New Delhi, South Korea:Seoul, North Korea:Pyongyang, Thailand:Bangkok,
    Vietnam:Hanoi, Indonesia:Jakarta, Malaysia:Kuala Lumpur, the Philippines:Manila,
    Mongolia:Ulaanbaatar, Nepal:Kathmandu, Pakistan:Islamabad, Bangladesh:Dhaka, Iran:Tehran,
    Iraq:Baghdad, Saudi Arabia:Riyadh, Jordan:Amman, Lebanon:Beirut, Syria:Damascus,
    Qatar:Doha, Oman:Muscat, the United States:Washington, Canada:Ottawa, Mexico:Mexico City,
    Brazil:Brasilia, Argentina:Buenos Aires, Chile:Santiago, Peru:Lima, Colombia:Bogota,
    Ecuador:Quito, Venezuela:Caracas, Bolivia:Sucre, Uruguay:Montevideo, Paraguay:Asuncion,
    Cuba:Havana, Jamaica:Kingston, Australia:Canberra, New Zealand:Wellington, Fiji:Suva"""
)
_CONTINENTS = {
    "Europe": "France Germany Spain Italy Portugal Poland Austria Norway Sweden Finland Greece "
    "Hungary Romania Ireland Iceland Denmark Belgium Switzerland Ukraine Croatia",
    "Africa": "Egypt Morocco Algeria Tunisia Kenya Ethiopia Ghana Nigeria Senegal Uganda Angola "
    "Zambia Rwanda Somalia Sudan Libya",
    "Asia": "China Japan India Thailand Vietnam Indonesia Malaysia Mongolia Nepal Pakistan Iran "
    "Iraq Jordan Lebanon Qatar Bangladesh",
    "North America": "Canada Mexico Cuba Jamaica",
    "South America": "Brazil Argentina Chile Peru Colombia Ecuador Venezuela Bolivia Uruguay",
    "Oceania": "Australia Fiji",
}
CONTINENTS = {country: name for name, them in _CONTINENTS.items() for country in them.split()}
SYMBOLS = _pairs(
    """hydrogen:H, helium:He, lithium:Li, carbon:C, nitrogen:N, oxygen:O, fluorine:F, neon:Ne,
    sodium:Na, magnesium:Mg, aluminium:Al, silicon:Si, phosphorus:P, sulfur:S, chlorine:Cl,
    argon:Ar, potassium:K, calcium:Ca, titanium:Ti, chromium:Cr, iron:Fe, cobalt:Co, nickel:Ni,
    copper:Cu, zinc:Zn, silver:Ag, tin:Sn, iodine:I, tungsten:W, platinum:Pt, gold:Au,
    mercury:Hg, lead:Pb, uranium:U"""
)
NUMBERS = _pairs(
    """hydrogen:1, helium:2, lithium:3, carbon:6, nitrogen:7, oxygen:8, fluorine:9, neon:10,
    sodium:11, magnesium:12, aluminium:13, silicon:14, phosphorus:15, sulfur:16, chlorine:17,
    argon:18, potassium:19, calcium:20, titanium:22, iron:26, copper:29, zinc:30, silver:47,
    tin:50, gold:79, lead:82, uranium:92"""
)
PLANETS = _pairs(
    """first:Mercury, second:Venus, third:Earth, fourth:Mars, fifth:Jupiter, sixth:Saturn,
    seventh:Uranus, eighth:Neptune"""
)
MIXES = _pairs(
    """blue and yellow:green, red and yellow:orange, red and blue:purple, black and white:grey,
    red and white:pink, yellow and blue:green, yellow and red:orange, blue and red:purple,
    white and black:grey, white and red:pink"""
)
COLOURS = _pairs(
    """grass:green, the sky:blue, snow:white, coal:black, blood:red, a banana:yellow,
    a lemon:yellow, an orange:orange, a ripe tomato:red, an emerald:green, a ruby:red,
    a sapphire:blue, chocolate:brown, milk:white, the sun:yellow, a flamingo:pink"""
)
YOUNG = _pairs(
    """dog:puppy, cat:kitten, cow:calf, horse:foal, sheep:lamb, goat:kid, pig:piglet, hen:chick,
    duck:duckling, goose:gosling, bear:cub, lion:cub, deer:fawn, frog:tadpole, kangaroo:joey,
    swan:cygnet, owl:owlet, elephant:calf"""
)
LEGS = _pairs("spider:8, ant:6, bee:6, dog:4, cat:4, horse:4, bird:2, snake:0, cow:4, crab:10")
SOUNDS = _pairs(
    """dog:barks, cat:meows, cow:moos, horse:neighs, sheep:bleats, pig:oinks, duck:quacks,
    lion:roars, wolf:howls, bee:buzzes, frog:croaks, snake:hisses, owl:hoots, mouse:squeaks"""
)
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
OPPOSITES = _pairs(
    """hot:cold, big:small, tall:short, fast:slow, old:young, light:dark, open:closed, up:down,
    left:right, happy:sad, full:empty, early:late, wet:dry, hard:soft, strong:weak, day:night,
    good:bad, high:low, near:far, rich:poor, thick:thin, loud:quiet, clean:dirty, heavy:light,
    true:false, begin:end, buy:sell, push:pull, win:lose, inside:outside"""
)
SIDES = _pairs("triangle:3, square:4, rectangle:4, pentagon:5, hexagon:6, heptagon:7, octagon:8")
CURRENCIES = _pairs(
    """Japan:yen, the United States:dollar, the United Kingdom:pound, France:euro, Germany:euro,
    Italy:euro, Spain:euro, India:rupee, China:yuan, Russia:rouble, Mexico:peso, Brazil:real,
    Switzerland:franc, Sweden:krona, Denmark:krone, Poland:zloty, Turkey:lira, Thailand:baht,
    South Korea:won, Hungary:forint"""
)
LANGUAGES = _pairs(
    """France:French, Germany:German, Spain:Spanish, Italy:Italian, Portugal:Portuguese,
    Brazil:Portuguese, Poland:Polish, Russia:Russian, China:Chinese, Japan:Japanese,
    Greece:Greek, Turkey:Turkish, Sweden:Swedish, Norway:Norwegian, Finland:Finnish,
    Hungary:Hungarian, Egypt:Arabic, Mexico:Spanish, Austria:German, the Netherlands:Dutch,
    Thailand:Thai, Vietnam:Vietnamese"""
)
SINGLE = _pairs(
    """What is the largest planet:Jupiter, What is the smallest planet:Mercury,
    What is the largest ocean:the Pacific, What is the highest mountain:Mount Everest,
    What is the largest animal:the blue whale, What is the fastest land animal:the cheetah,
    What is the tallest animal:the giraffe, What is the chemical formula of water:H2O,
    Which planet is called the red planet:Mars, Which planet has the great rings:Saturn,
    What do bees make:honey, What do cows give:milk, What is frozen water called:ice,
    What does the Earth orbit:the Sun, What orbits the Earth:the Moon,
    How many days are in a year:365, How many days are in a week:7,
    How many hours are in a day:24, How many months are in a year:12,
    How many continents are there:7, How many planets are in the solar system:8,
    How many letters are in the English alphabet:26, How many legs does an insect have:6,
    What gas do plants take in:carbon dioxide, What gas do we breathe to live:oxygen,
    At what temperature does water boil in Celsius:100,
    At what temperature does water freeze in Celsius:0,
    What is the largest country:Russia, What is the longest wall in the world:the Great Wall,
    How many seconds are in a minute:60, How many minutes are in an hour:60,
    What is the hottest season:summer, What is the coldest season:winter,
    What is the first letter of the alphabet:A, What is the last letter of the alphabet:Z,
    What star is at the centre of the solar system:the Sun"""
)
