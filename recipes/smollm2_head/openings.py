"""How messages begin, for `treespec write --openings`: a few words that fix the task, and the target goes on.

Templates with every word filled in (the other modules) teach a head their own phrases. A model that writes the rest of
a message itself writes a different passage, function or question every time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from recipes.smollm2_head.words import (
    CHARACTERS,
    COUNTRIES,
    FIRST_NAMES,
    HOBBIES,
    JOBS,
    PLACES,
    SCIENCE,
    SOCIETY,
    THEMES,
    split_words,
)


def _lines(text: str) -> list[str]:
    r"""One opening per line, in which \n stands for a new line."""
    return [line.replace(r"\n", "\n") for line in text.splitlines()]


CODE = _lines(r"""Write a Python function that
Write a Python function called {verb}_
Complete this Python function and return it:\n\n```python\ndef {verb}_
Complete the following method:\n\n```python\n    def {verb}_
```python\ndef {verb}_
```python\nimport {module}\n\n\ndef {verb}_
Finish this code:\n\n```{language}\n
Write a {language} program that
Write a class in {language} that
How do I {verb} a {thing} in {language}?
How can I {verb} a list of
What does this code do?\n\n```python\n
Explain this {language} code step by step:\n\n```{language}\n
Find the bug in this function:\n\n```python\ndef {verb}_
Rewrite this function so that it is faster:\n\n```python\ndef {verb}_
Write unit tests for this function:\n\n```python\ndef {verb}_
Add a docstring and type hints:\n\n```python\ndef {verb}_
Write an SQL query that
Write a regular expression that matches
Write a shell script that
I get the error "{error}:
Given a {thing} of integers,
Given two strings,
Implement {thing} with the methods
What is the time complexity of
What is the difference between a {thing} and""")

MATHS = _lines(r"""{name} has {n}
{name} buys {n}
{name} and {other} share
{name} earns ${n}
{name} wants to
{name} reads
{name} is {n} years old and
{name} drives
{name} runs
{name} bakes
{name}'s {relative} gives
A {job} earns
A {job} works {n}
A shop sells
A train leaves {place} at
A rectangle has
A tank holds {n}
A box holds {n}
A bag contains {n}
In a class of {n} students,
There are {n}
Every day, {name}
If {n} workers can
If {name} has {n} times as many
The sum of
The price of
The average of
Two numbers
How many different ways
What is the probability that
Solve for x:
Solve the system of equations:
Simplify the expression
Find the area of
Find the derivative of
What is {n}% of
Calculate
Solve this word problem step by step.\n\n{name}
Prove that""")

PASSAGES = _lines(r"""Summarize the following article:\n\n{place}
Summarize the following article:\n\nThe
Summarize this news report in three sentences:\n\nPolice in {place}
Summarize:\n\nA {job} from {place}
Summarize the text in one sentence:\n\n{country}'s
Give me the main points of this text:\n\nScientists
Write a headline for this article:\n\n
What is the main idea of this paragraph?\n\n
Read the passage and answer the question.\n\nPassage:
Answer the question using the passages below.\n\nPassage 1: {country}
Answer from the context only.\n\nContext: {topic}
Use these documents to answer the question.\n\nDocument [1] (Title: {topic})
Here is a passage about {topic}:
Based on this text, who
Extract all names and dates from this text:\n\nIn
Extract the key facts as a JSON object:\n\n
List the people and places in this text:\n\n
Classify the sentiment of this review:\n\n
Is this review positive or negative?\n\nI bought
Rate these movie reviews from 1 to 5:\n\n
Rewrite this text in simple words:\n\n
Correct the grammar and return the whole text:\n\n
Edit this paragraph:\n\n
Shorten this e-mail:\n\nDear {name},
Turn these notes into a paragraph:\n\n-
Translate {foreign}
Translate from {foreign}
Translate this text from {foreign}
Translate into {tongue}: The
Translate into {tongue}: We
How do you say in {tongue}:
What is the {tongue} word for""")

TALK = _lines(r"""Who
Who was the first
Who wrote
Who invented
When did
When was
Where is
Where did
Which
What is
What is {topic}
What was
What does
What do you call
What year
What are the causes of
What are the symptoms of
What happens when
What would happen if
How many
How much
How long does
How does {topic}
How can I
How do I
How did
Why is
Why do
Why did {country}
Can you
Could you please
Is it true that
Do you think
Should I
Tell me about
Tell me a
Give me
Give me {n} ideas for
Give an example of
Describe
Describe a
Explain
Explain how
Explain why {topic}
Compare
Discuss
List
Name {n}
Suggest
Recommend
Imagine
Imagine you are {character}
Pretend
You are
You are a {job}.
Act as a {job}
I want you to act as
I am a {job} and
I have been
I need help with
I feel
My {relative}
Help me
Write a story about
Write a story that begins with
Write a poem
Write a poem about {theme}
Write an essay
Write an e-mail
Write a letter to
Write a blog post
Write a dialogue
Write a review of
Write a speech
Write a short
Compose
Create
Create a table
Design
Develop
Draft
Plan
Outline
Analyze
Evaluate
Identify
Rewrite
Suppose
Given
Some people
The
One day, {character}
In {place},
In the novel
In {country},
During
According to
For my {hobby}
Hello, I
Hi! I'm""")

WORDS: dict[str, Sequence[str]] = {
    "name": FIRST_NAMES,
    "other": FIRST_NAMES,
    "place": PLACES,
    "country": COUNTRIES,
    "job": JOBS,
    "topic": [*SCIENCE, *SOCIETY],
    "theme": THEMES,
    "hobby": HOBBIES,
    "character": CHARACTERS,
    "relative": split_words("mother, father, sister, brother, uncle, grandmother, neighbour, boss, friend"),
    "verb": split_words("""count, find, sum, sort, filter, is, check, reverse, merge, split, remove, convert, parse, get,
compute, make, group, replace, build, max, min, longest, rotate, encode, validate, unique, flatten, has, first, next"""),
    "thing": split_words("list, string, dictionary, matrix, tree, stack, queue, graph, file, number, set, tuple"),
    "module": split_words("math, re, random, json, collections, itertools, datetime, csv, os, heapq"),
    "language": split_words("Python, JavaScript, Java, C++, C, Go, Rust, Ruby, PHP, TypeScript, R, Kotlin, Bash"),
    "error": split_words("TypeError, ValueError, KeyError, IndexError, AttributeError, SyntaxError, ImportError"),
    "tongue": split_words("German, French, Spanish, Italian, Portuguese, Dutch"),
    "foreign": split_words("""German to English: Die, German to English: Der, German to English: Das, German to English: Wir,
German to English: Im, German to English: Nach, German to English: Es, French to English: Le, French to English: La,
French to English: Nous, French to English: Dans, French to English: Il, Spanish to English: El, Spanish to English: Los,
Spanish to English: La, Italian to English: Il, Italian to English: Gli, Dutch to English: Het"""),
    "n": [str(n) for n in [*range(2, 31), 36, 40, 45, 48, 50, 60, 72, 80, 90, 100, 120, 144, 150, 200, 240, 300, 500]],
}

QUARTERS = (CODE, MATHS, PASSAGES, TALK)


def build_openings(count: int, seed: int = 0) -> list[str]:
    """`count` openings of the four kinds by turns; one may come again, as the model goes on with it in another way."""
    rng = Random(f"openings {seed}")
    return [_fill(rng.choice(QUARTERS[i % len(QUARTERS)]), rng) for i in range(count)]


def _fill(template: str, rng: Random) -> str:
    filled = template.format_map({name: rng.choice(words) for name, words in WORDS.items()})
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", filled)
