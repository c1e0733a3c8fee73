"""Names, things and topics that prompts are made of."""

from __future__ import annotations

from random import Random


def split_words(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(word.strip() for word in text.replace("\n", " ").split(",") if word.strip())


FIRST_NAMES = split_words("""Amara, Bence, Carla, Dmitri, Elif, Farid, Greta, Hiro, Ines, Jonas, Kavya, Liam, Mira, Nadia,
Omar, Priya, Quentin, Rosa, Stefan, Tamika, Ulrich, Vera, Wen, Ximena, Yusuf, Zoe, Anton, Beatriz, Chidi, Dana, Emeka,
Fiona, Gustav, Hana, Igor, Jasmin, Kofi, Lucia, Marek, Noor, Olga, Pablo, Rina, Samir, Tessa, Uma, Viktor, Wanda, Yara,
Zane, Agnes, Bruno, Clara, Diego, Esther, Felix, Gita, Henrik, Ivana, Joel""")

LAST_NAMES = split_words("""Abara, Berger, Castillo, Dubois, Eriksen, Ferrari, Gupta, Haddad, Ivanov, Jimenez, Kowalski,
Lindqvist, Moreau, Nakamura, Okafor, Petrov, Quispe, Rahman, Sato, Tanaka, Ueda, Vargas, Weber, Xu, Yilmaz, Zhang, Novak,
Larsen, Mbeki, Rossi, Silva, Torres, Fischer, Adeyemi, Bianchi, Horvat, Costa, Nguyen""")

PLACES = split_words("""Oslo, Nairobi, Lima, Kyoto, Porto, Tallinn, Accra, Quito, Hanoi, Bergen, Seville, Izmir, Cork, Turin,
Ghent, Malmo, Cusco, Dakar, Perth, Halifax, Bristol, Leipzig, Graz, Lyon, Krakow, Split, Tbilisi, Muscat, Pune, Cebu,
Sapporo, Busan, Tucson, Portland, Savannah, Duluth, Santa Fe, Omaha, Boise, Asheville""")

COUNTRIES = split_words("""Norway, Kenya, Peru, Japan, Portugal, Estonia, Ghana, Ecuador, Vietnam, Spain, Turkey, Ireland, Italy,
Belgium, Sweden, Senegal, Australia, Canada, Germany, Austria, France, Poland, Croatia, Georgia, Oman, India, Mongolia,
South Korea, Mexico, Chile, Argentina, Brazil, Morocco, Egypt, Ethiopia, Tanzania, Iceland, Finland, Greece, Hungary,
Switzerland, Nepal, Indonesia, New Zealand, Bolivia, Colombia, Cuba, Jamaica, Thailand, Malaysia""")

JOBS = split_words("""baker, carpenter, nurse, bus driver, electrician, librarian, gardener, plumber, journalist, chemist,
teacher, architect, fisherman, tailor, pharmacist, photographer, engineer, accountant, potter, translator, vet, farmer,
pilot, waiter, mechanic, violinist, geologist, firefighter, beekeeper, software developer""")

GOODS = split_words("""notebooks, candles, mugs, scarves, lamps, cushions, kites, umbrellas, baskets, clocks, vases, puzzles,
backpacks, blankets, pencils, posters, plates, wooden spoons, soaps, bracelets""")

FOODS = split_words("""pears, muffins, sandwiches, pancakes, tomatoes, lemons, pretzels, dumplings, cookies, carrots, plums,
bagels, peaches, onions, mangoes, waffles, pies, oranges, potatoes, samosas""")

SCIENCE = split_words("""black holes, plate tectonics, the water cycle, DNA replication, vaccines, magnets,
electric motors, the greenhouse effect, natural selection, antibiotics resistance, the periodic table, rainbows, tides,
entropy, Newton's laws of motion, chemical bonds, acids and bases, the immune system, the human heart, sleep, memory,
volcanoes, earthquakes, the speed of light, radio waves, lasers, semiconductors, nuclear fission, solar panels, batteries,
fermentation, the nitrogen cycle, coral reefs, bird migration, the ozone layer, general relativity, Doppler shift,
stem cells, enzymes, viruses and bacteria, the carbon cycle, sound waves, lenses, osmosis, gravity, comets, the Moon's phases,
supernovae, wind turbines, hydraulic brakes, refrigerators, jet engines, 3D printing, GPS, cryptography, hash tables,
neural networks, binary numbers, operating systems, databases, recursion, compilers, the Internet's domain names""")

SOCIETY = split_words("""supply and demand, the Industrial Revolution, the Silk Road, the Roman Republic, democracy,
the Renaissance, the printing press, colonialism, the French Revolution, the Cold War, urbanisation, trade unions,
the United Nations, the separation of powers, human rights, globalisation, minimum wages, central banks, interest rates,
stoicism, utilitarianism, existentialism, free will, social contracts, Impressionism, baroque music, jazz, haiku,
Greek tragedy, folk tales, the Black Death, the Age of Sail, the Ottoman Empire, the Meiji Restoration, the Bronze Age,
women's suffrage, the moon landing, the Suez Canal, public libraries, propaganda, taxation, insurance, game theory,
cognitive biases, conformity, child development, bilingualism, census taking, copyright""")

HOBBIES = split_words("""baking bread, growing tomatoes, learning the guitar, running a marathon, watercolour painting, chess,
bird watching, knitting, pottery, cycling to work, playing the piano, photography, learning Spanish, keeping bees, hiking,
writing a novel, woodworking, meditation, swimming, camping with children, restoring old bicycles, stargazing, sailing,
public speaking, saving money, job interviews, remote work, studying for exams, moving to a new city, adopting a dog,
organising a small wedding, starting a podcast, making cheese, composting, rock climbing, journaling, cooking for one,
houseplants, sewing clothes, geocaching, home brewing, calligraphy, juggling, board game nights, volunteering""")

CHARACTERS = split_words("""a lighthouse keeper, a retired detective, a talking raven, a ship's cook, a shy dragon, a medieval
monk, a space station botanist, a street musician, a clumsy wizard, an old cartographer, a night train conductor, a robot
gardener, a beekeeper's daughter, a museum guard, a time traveller, a village doctor, a stubborn goat, a deep-sea diver,
a forgetful king, a chess prodigy, a desert guide, a puppet maker, a weather reporter, a ghost in a library, a mail pilot""")

THEMES = split_words("""a lost letter, the first snow, an unexpected guest, a broken clock, a secret garden, a storm at sea, a
promise kept late, two rivals who become friends, a town without music, a door that should not be opened, the last train,
a borrowed coat, an old map, a missing cat, a strange inheritance, a power cut, a long journey home, a misunderstanding,
a birthday nobody remembered, a bridge, an empty house, a market in the rain, a message in a bottle, autumn leaves,
a mountain village, the night sky, an apology, a small act of courage""")


def full_name(rng: Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def names(rng: Random, count: int) -> list[str]:
    """Different first names."""
    return rng.sample(FIRST_NAMES, count)


def date(rng: Random) -> str:
    month = rng.choice(split_words("January, March, April, May, June, July, September, October, November"))
    return f"{rng.randint(1, 28)} {month} {rng.randint(1880, 2024)}"
