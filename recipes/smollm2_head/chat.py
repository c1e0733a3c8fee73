"""Conversation: advice, explanations, writing, roles, lists, translations, short questions, data formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from recipes.smollm2_head.words import (
    CHARACTERS,
    COUNTRIES,
    FIRST_NAMES,
    FOODS,
    GOODS,
    HOBBIES,
    JOBS,
    PLACES,
    SCIENCE,
    SOCIETY,
    THEMES,
    full_name,
)

EXPLAIN = """Explain {topic} in simple terms.
What is the main idea behind {topic}?
Explain {topic} to a {age}-year-old.
What are common misunderstandings about {topic}?
Why does {topic} matter in everyday life?
Write a short encyclopedia entry about {topic}.
Give me {k} interesting facts about {topic}.
What is the difference between {topic} and {topic2}?
How did people come to understand {topic}? Mention the most important steps.
Write a quiz with {k} questions and answers about {topic}.
Discuss advantages and disadvantages of {topic} in two paragraphs.
What would the world look like without {topic}?
Use an analogy to explain {topic}.
I have to give a {k}-minute talk about {topic}. Draft an outline.
Compare {topic} with {topic2} in a table.
Who made important contributions to our knowledge of {topic}, and what were they?""".splitlines()

ADVICE = """I want to get into {hobby}. Where do I start?
Give me {k} tips for {hobby}.
What mistakes do beginners make when it comes to {hobby}?
Make a {k}-week plan for {hobby}, with one goal per week.
What do I need to buy for {hobby}, and what does it cost about?
My friend {name} says that {hobby} is a waste of time. What could I answer?
How can a busy {job} find time for {hobby}?
I am nervous about {hobby}. Any advice?
What are the pros and cons of {hobby}?
Plan a weekend in {place} for a {job} who loves {hobby}.
What should I know before I travel to {country}?
How do I store {foods} so that they keep longer?
What can I cook with {foods}, rice and {k} eggs?
I was late for work three times this week. How should I apologise to my boss?
How do I ask for a higher salary as a {job}?
What gift would suit a {job} who collects {goods}?""".splitlines()

WRITE = """Write a short story about {theme}.
Write a poem about {theme}.
Write a story of about {k}0 words in which {character} and {character2} meet.
Write the first paragraph of a mystery novel set in {place}.
Write a dialogue between {character} and {character2} about {theme}.
Write an e-mail to {full} to cancel a meeting about {hobby}.
Write a letter of application for a position as a {job} in {place}.
Write a product description for handmade {goods}.
Write a blog post about a rainy day in {place}.
Write a short speech for the farewell of a colleague who worked as a {job} for {k}0 years.
Write a review of a restaurant in {place} that is famous for its {foods}.
Write a limerick about {character}.
Compose a thank-you note for {goods} that {name} sent me.
Write a news report about {theme} in {place}.
Describe {place} in the morning, using all five senses.
Write a diary entry by {character}.
Invent a fairy tale about {theme} with a surprising end.
Write a persuasive paragraph: should every school teach {hobby}?
Write a haiku about {theme}, then explain it.
Write a scene in which {name} learns about {theme}.
Come up with a slogan and a name for a shop that sells {goods} and {foods}.""".splitlines()

ROLES = """You are {character}. Tell me about your day.
Pretend that you are {character}. A visitor asks you for help with {hobby}. What do you say?
Act as a {job} and interview me about {hobby}. Ask your first question.
Take the role of {character} and explain {topic} in your own style.
I want you to act as a travel guide for {place}. I have only {k} hours.
Imagine you are a {job} in the year 2150. Describe a normal working day.
You are a strict but fair teacher. Comment on this sentence by a pupil: "{topic} is boring."
Answer like {character}: what is the meaning of {theme}?""".splitlines()

LISTS = """List {k} {things}.
Name {k} {things} and describe each in one sentence.
Give me a numbered list of {k} {things}.
Write a JSON array of {k} {things}, each with the keys "name" and "description".
Make a table of {k} {things} with a column for the reason to choose each.
Suggest {k} {things} as comma-separated values.
Write a YAML list of {k} {things}.
Write an HTML page that lists {k} {things}.""".splitlines()

THINGS = """animals that live in {country}
dishes with {foods}
names for a cat that lives with a {job}
questions to ask a {job}
things to see in {place}
words that rhyme with "{rhyme}"
reasons to learn about {topic}
ideas for a birthday party with the theme of {theme}
uses for old {goods}
books about {topic}
songs for a long drive through {country}
games for {k} children on a rainy day
healthy snacks with {foods}
synonyms of the word "{word}"
inventions that changed life for a {job}
habits that help with {hobby}
rivers, mountains or lakes in {country}
proverbs about {word} things""".splitlines()

QUESTIONS = """What is the capital of {country}?
Which languages are spoken in {country}?
What is {country} known for?
Which countries border on {country}?
What is the population of {country}?
When is the best time to visit {country}?
What currency is used in {country}?
Where do {foods} come from?
How many calories do {foods} have?
What does a {job} do?
How long does it take to become a {job}?
Where is {place}, and what is it famous for?
Who discovered or invented the basis of {topic}?
When did people first write about {topic}?
What does the word "{word}" mean, and where does it come from?
Is it true that {topic} was understood only in the last century?
Which is the highest mountain in {country}?
What is the weather like in {place} in autumn?
Which famous people were born in {country}?
What is the national dish of {country}?""".splitlines()

SENTENCES = """The museum in {place} is closed on Mondays, but the café stays open.
My sister works as a {job} and lives near the station.
We have ordered {k} {goods}, and they should arrive on Friday.
Could you tell me how to get to the library, please?
According to the minister, prices will rise by {k} percent next year.
I would have called you if I had not lost my phone in {place}.
The {foods} at the market were fresher than those in the supermarket.
{name} has been waiting for an answer since the beginning of the month.
Although it was raining, {k} thousand people came to the concert.
The train to {place} is delayed because of a technical problem.
Children learn languages faster when they play.
The government of {country} has rejected the proposal.""".splitlines()

LANGUAGES = ("French", "Spanish", "German", "Italian", "Portuguese", "Dutch")

FOREIGN = {
    "German": """Der Zug nach {place} hat heute {k} Minuten Verspätung.
Meine Schwester möchte im Sommer nach {place} fahren, weil sie das Meer liebt.
Die Regierung hat am Dienstag ein neues Gesetz über den Schutz der Wälder vorgestellt.
{name} sagte, dass die Preise seit dem letzten Jahr um {k} Prozent gestiegen seien.
Wir haben gestern Abend lange über die Zukunft der Schule gesprochen.
Die Polizei sucht Zeugen, die den Unfall am Bahnhof gesehen haben.
Das Museum zeigt bis Ende Mai {k} Bilder einer jungen Malerin aus {place}.
Trotz des schlechten Wetters kamen viele Besucher zum Fest auf dem Marktplatz.""",
    "French": """Le train pour {place} part à {k} heures du matin.
{name} a acheté du pain et des fleurs au marché.
Les enfants jouent dans le jardin pendant que leur mère prépare le dîner.
Selon le ministre, le projet coûtera {k} millions d'euros de plus que prévu.
Nous avons visité {place} l'été dernier et il faisait très chaud.""",
    "Spanish": """La reunión empieza a las {k} y termina antes de comer.
{name} trabaja en una librería cerca de la plaza mayor.
El año pasado viajamos a {place} y vimos muchas iglesias antiguas.
Los vecinos piden más autobuses y calles más seguras para sus hijos.
Si tuviera más tiempo, aprendería a tocar la guitarra.""",
}

RHYMES = ("light", "stone", "rain", "dream", "town", "blue", "song", "tree", "night", "bell")
ADJECTIVES = ("generous", "ancient", "brief", "curious", "fragile", "honest", "lively", "modest", "patient", "rapid")


def fill(template: str, rng: Random) -> str:
    topic, topic2 = rng.sample(SCIENCE + SOCIETY, 2)
    character, character2 = rng.sample(CHARACTERS, 2)
    return template.format(
        topic=topic, topic2=topic2, character=character, character2=character2, hobby=rng.choice(HOBBIES),
        job=rng.choice(JOBS), place=rng.choice(PLACES), country=rng.choice(COUNTRIES), foods=rng.choice(FOODS),
        goods=rng.choice(GOODS), theme=rng.choice(THEMES), name=rng.choice(FIRST_NAMES), full=full_name(rng),
        k=rng.randint(3, 10), age=rng.randint(6, 14), rhyme=rng.choice(RHYMES), word=rng.choice(ADJECTIVES),
    )  # fmt: skip


def make_list(rng: Random) -> str:
    return fill(rng.choice(LISTS).replace("{things}", rng.choice(THINGS)), rng)


def translate(rng: Random) -> str:
    if rng.random() < 0.5:
        language = rng.choice(sorted(FOREIGN))
        sentence = fill(rng.choice(FOREIGN[language].splitlines()), rng)
        return rng.choice(("Translate from {} to English: {}", "What does this {} sentence mean? {}")).format(
            language, sentence
        )
    request = rng.choice(
        ("Translate to {}: {}", "How do you say this in {}?\n\n{}", "Give me the {} translation of: {}")
    )
    return request.format(rng.choice(LANGUAGES), fill(rng.choice(SENTENCES), rng))


def _of(templates: Sequence[str]) -> Callable[[Random], str]:
    return lambda rng: fill(rng.choice(templates), rng)


KINDS: tuple[Callable[[Random], str], ...] = (
    _of(EXPLAIN),
    _of(EXPLAIN),
    _of(ADVICE),
    _of(WRITE),
    _of(WRITE),
    _of(ROLES),
    _of(QUESTIONS),
    make_list,
    translate,
)
