"""Tasks over a passage: summaries, extraction, questions, rewriting. Passages are reports from templates or Python's docs."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable
from functools import cache
from random import Random

from recipes.smollm2_head.words import COUNTRIES, FOODS, GOODS, HOBBIES, JOBS, PLACES, date, full_name, names

OPENINGS = """{who}, a {job} from {place}, has won this year's prize of the regional association for work on {topic}.
The town council of {place} decided on {date} to spend {n} million dollars on a new {building}.
A fire broke out in the old {building} of {place} early on {day} morning, and {k} people had to leave their homes.
{company}, a maker of {goods}, said on {day} that its sales rose by {q} percent last year.
Researchers at the University of {place} have found that people who take up {hobby} sleep about {k} minutes longer each night.
{who} was born in {place} on {date} and moved to {other} at the age of {k}.
The {building} of {place}, built in {year}, opens again to visitors next month after {k} years of repairs.
Heavy rain has closed the road between {place} and {other} for the third time this year.
Police in {place} are looking for the owner of {n} {goods} that were found in a park on {day}.
The festival of {foods} in {place} drew more than {n} thousand guests over the weekend.
A ferry with {n} passengers ran aground near {place} on {date}; nobody was hurt.
Teachers in {country} began a strike on {day} after talks about pay had failed.
The first night train from {place} to {other} in {k} years left on {day} evening with {n} travellers on board.
A new study of rivers in {country} shows that the water has become {k} degrees warmer since {year}.
{who} has been named head of {company}, which makes {goods} in {place} and {other}.""".splitlines()

MIDDLES = """"It came as a complete surprise," said {name}, who has lived there for {k} years.
The work is expected to cost about {n} million dollars and to take until {year2}.
Neighbours had warned of the danger several times, most recently in {year2}.
{name} told reporters that the decision had been made together with the families concerned.
Prices for {goods} have fallen by {q} percent since {year2}, while wages hardly changed.
At first the plan was criticised because it would have meant the end of a small market that sells {foods}.
According to {name}, a {job}, similar attempts in {country} had mixed results.
More than {n} volunteers from {other} came to help, many of them students.
The oldest part dates from {year} and was used as a school during the war.
A spokeswoman declined to say whether any of the {n} employees would lose their jobs.
Visitors can learn about {topic} in a small exhibition, which is free for children under {k}.
The team measured the effect in {n} volunteers over {k} months and compared it with a second group.
Only {q} percent of those asked said that they felt well informed.
Trains and buses were late by up to {n} minutes, and two schools stayed closed.
{name}, who began as an assistant in {year2}, had already led the branch in {other}.
Critics say that the money should rather be spent on schools, clinics and bus lines.
In {country}, the same problem was solved with a simple fee of {k} dollars.
The cause is not yet known, but experts do not rule out a broken cable.
For years the site had been left to itself, and trees were growing through the roof.
Sales abroad, above all in {country}, made up for a weak market at home.""".splitlines()

CLOSINGS = """A final decision is expected on {date2}.
The next meeting is open to everyone and takes place in the {building} of {place}.
{name} hopes that others will follow the example.
It remains unclear who will pay for the damage.
Further results are to be published at the end of the year.
The organisers have already announced that they will come back next summer.
Until then, visitors are asked to use the entrance on the north side.
"We have waited long enough," {name} said.""".splitlines()

MESSAGES = (
    """Hi {a},
just a quick note about the trip to {place}. We meet on {day} at {k} o'clock in front of the {building}. Please bring {n} dollars for the ticket, something to eat and good shoes. {b} will drive, {c} brings the {goods}. Call me if you are late.
{a2}""",
    """Dear Sir or Madam,
on {date2} I ordered {k} {goods} from your shop (order number {n}{k}{q}). Only {s} of them arrived, and two are broken. I would like to have the missing ones sent to my address in {place} or my money, {n} dollars, back.
Yours faithfully, {who}""",
    """Minutes of the meeting on {day}: {a} reported that the budget for {hobby} is nearly used up ({q} percent). {b} will ask {company} for an offer until {date2}. {c} proposed to move the next meeting to {place}; this was accepted with {k} to {s} votes. Open question: who looks after the {goods}?""",
    """Review: I bought these {goods} for my sister in {place}. They look lovely and arrived after {k} days, but after {s} weeks the colour began to fade, and the shop has not answered my messages. For {n} dollars I had hoped for more. The packaging was nice, though.""",
    """For sale: {goods} from {country}, made about {year}, in good condition. Price {n} dollars, or {q} dollars each for more than {k}. Pick up in {place} after 6 pm or shipping for {s} dollars. Ask for {who}.""",
    """Recipe for {foods}: mix {n}0 grams of flour with {k} spoons of sugar and {s} eggs. Let it rest for {q} minutes. Then add milk and bake at {h} degrees until the top is golden. Serves {k}. My grandmother in {country} always added a little salt.""",
)

LOOSE = """the meeting are moved to {day} because {a} have an appointment in {place} and can not comes before {k} o clock
me and {b} was going to {place} for see the {building} but it were closed so we eated {foods} instead
{c} dont know weather the {goods} is ready, he say it take {k} day more and cost {n} dollar extra
yesterday i buyed {k} {foods} in {place} , they was more cheaper then last week but not so well
their are {n} peoples in the {building} and noone knows were {a} has putted there {goods}""".splitlines()

TASKS = (
    "Summarise the following text in {s} sentences:\n\n{passage}",
    "{passage}\n\nGive a one-sentence summary of the text above.",
    "Summarize: {passage}",
    "Read the text and list all names of people and places.\n\n{passage}",
    "Extract every number in the following text together with what it counts, as a bulleted list.\n\n{passage}",
    'Turn the text below into JSON with the keys "who", "where", "when" and "what".\n\n{passage}',
    "Write a headline of at most ten words for this report:\n\n{passage}",
    "Context: {passage}\n\nQuestion: What happened, and why does it matter? Answer from the context only.",
    "Use the passage to answer. Passage: {passage} Question: Who is mentioned, and in what role?",
    "What are the three most important points of this text?\n\n{passage}",
    "Rewrite the following text so that a ten-year-old understands it:\n\n{passage}",
    "Rewrite this text in a friendlier tone and keep all facts:\n\n{passage}",
    "Is the tone of this text positive, negative or neutral? Give a reason.\n\n{passage}",
    "Write three questions that can be answered from the text, with their answers.\n\n{passage}",
    "Shorten this text to half its length:\n\n{passage}",
    "Continue this report with two more sentences:\n\n{passage}",
    "Copy the text below, but replace every number by the word NUMBER.\n\n{passage}",
    "Put the facts from this text into a table with two columns.\n\n{passage}",
)

MENDING = (
    "Correct all mistakes in this sentence: {}",
    "Fix the grammar and spelling:\n\n{}",
    "Rewrite this in formal English: {}",
    "Improve the style of the following message and explain the changes.\n\n{}",
)

ABOUT_DOCS = (
    "Summarise this part of Python's documentation in two sentences:\n\n{}",
    "Explain the following to a beginner and give a short example.\n\n{}",
    "{}\n\nWhat does this text say? Answer in your own words.",
    "Based on the text, write three quiz questions with answers.\n\n{}",
    "List the technical terms in this text and explain each in a few words:\n\n{}",
    "Rewrite this text in simpler words:\n\n{}",
)

BUILDINGS = (
    "town hall",
    "library",
    "swimming pool",
    "market hall",
    "railway station",
    "museum",
    "theatre",
    "harbour office",
)
COMPANIES = ("Northwind", "Bluestone", "Harvest & Sons", "Lumen Works", "Kestrel", "Old Mill", "Tidewater", "Fernhill")
MONTHS = ("January", "February", "April", "May", "June", "August", "October", "December")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TOPICS = (
    "clean water",
    "old maps",
    "bees",
    "school gardens",
    "safe roads",
    "folk songs",
    "local history",
    "glass making",
)


def fill(template: str, rng: Random) -> str:
    """A template with drawn names, places and numbers."""
    a, b, c, a2, name = names(rng, 5)
    place, other = rng.sample(PLACES, 2)
    return template.format(
        a=a, b=b, c=c, a2=a2, name=f"{name} {full_name(rng).split()[1]}", who=full_name(rng), job=rng.choice(JOBS),
        place=place, other=other, country=rng.choice(COUNTRIES), company=rng.choice(COMPANIES), goods=rng.choice(GOODS),
        foods=rng.choice(FOODS), hobby=rng.choice(HOBBIES), topic=rng.choice(TOPICS), building=rng.choice(BUILDINGS),
        day=rng.choice(DAYS), date=date(rng), date2=f"{rng.choice(DAYS)}, {rng.randint(1, 28)} {rng.choice(MONTHS)}", year=rng.randint(1780, 1990), year2=rng.randint(1991, 2024),
        n=rng.randint(13, 95), k=rng.randint(5, 12), s=rng.randint(2, 4), q=rng.randint(2, 60), h=rng.randint(16, 22) * 10,
    )  # fmt: skip


def report(rng: Random) -> str:
    """News that never happened, of four to ten sentences."""
    sentences = [rng.choice(OPENINGS), *rng.sample(MIDDLES, rng.randint(2, 8)), rng.choice(CLOSINGS)]
    return " ".join(fill(sentence, rng) for sentence in sentences)


def message(rng: Random) -> str:
    return fill(rng.choice(MESSAGES), rng)


def about_report(rng: Random) -> str:
    return _task(rng, report(rng))


def about_message(rng: Random) -> str:
    return _task(rng, message(rng))


def about_docs(rng: Random) -> str:
    return rng.choice(ABOUT_DOCS).format(rng.choice(documentation()))


def mend(rng: Random) -> str:
    return rng.choice(MENDING).format(" ".join(fill(line, rng) for line in rng.sample(LOOSE, rng.randint(1, 2))))


KINDS: tuple[Callable[[Random], str], ...] = (about_report, about_report, about_report, about_message, about_docs, mend)


def _task(rng: Random, passage: str) -> str:
    return rng.choice(TASKS).format(passage=passage, s=rng.randint(2, 4))


@cache
def documentation() -> list[str]:
    """Paragraphs of prose from Python's own help texts; none with a set phrase that HumanEval uses as well."""
    texts = [pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)]
    paragraphs = [" ".join(p.split()) for text in texts for p in text.split("\n\n") if not p.startswith((" ", "*"))]
    return [p for p in paragraphs if 250 < len(p) < 900 and "::" not in p and "if and only if there is" not in p]
