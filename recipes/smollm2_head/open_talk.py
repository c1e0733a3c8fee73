"""Open talk: roles, stories, letters, opinions, advice, explanations, brainstorming, dialogue, and rewriting of a text.

A message is a request, often with a remark about the sender before it and a wish about length, tone or form behind it,
so that few messages share more than a phrase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    split_words,
)

ROLES = """From now on you are {character}. {name} knocks at your door and asks about {theme}. What do you say?
Let's play a game of roles: you are a {job} in {place}, I am a customer who is angry about {goods}. You begin.
Be my {job} for an hour. First question: how would you explain {topic} to somebody who never went to school?
Speak to me as {character} would, and never leave that role. Good morning! How did you sleep?
You are {name}, a {mood} {job} from {place}. Introduce yourself to the class.
You are the narrator of an audio guide in {place}. Describe the first three stops of the tour.
Stay in the role of a {mood} teacher of {subject}. A pupil asks why {topic} should matter to anyone.
You are a travel agent for {country}. Convince {character} to book a journey.
Be {character} and answer in short, {mood} sentences: what do you think of {goods}?
As a {job} with {n} years behind you, what do you tell beginners on their first morning?
Play a shopkeeper who sells only {goods}. I walk in and ask for {foods}.
You are a {mood} judge at a fair in {place}, and {name} presents a cake made of {foods}. Give your verdict.
Pretend we are two {job}s on a break. Tell me what went wrong this morning.
You host a radio show about {subject}. Welcome tonight's guest, {character}, and ask three questions.
You are a coach. I failed at {hobby} for the {n}th time and I want to quit. Talk to me.
Imagine being a {thing} in the house of {character}. What did you see today?
You are a guide at a museum of {subject}. A child asks what the strangest object is.
I am {name}, a {job}, and you are my {mood} assistant. Plan my day in {place}.
Answer as three different people would, a {job}, a child and {character}: what is {topic}?
You are the mayor of {place}. Reply to people who want less traffic and more trees.
Take the part of a {mood} critic and tell me about the last novel you read, on {theme}.
You are an interviewer for a {job}'s position. Ask me one question, then say what a good answer has.""".splitlines()

STORIES = """Tell me a {mood} bedtime story in which {character} finds {theme}.
Write a scene: {name} and {other} argue about {goods} at the station in {place}.
Begin a novel in which a {job} from {country} discovers {theme}. Only the opening page, please.
Continue this story: "{name} had not spoken to anyone in {place} for {n} days."
Write the ending of a story about {character} and {theme}.
A {job}, {character} and a {thing} are stuck in a lift. What happens?
Write a fable in which a {animal} teaches a {animal2} something about {virtue}.
Retell an old legend as if it had happened in {place} last week.
Write a ghost story without any ghost, set in a {room} in {place}.
Tell the story of an invention that {name} made by accident while {hobby} was still only an idea.
Write a {mood} monologue for {character}, who has just lost a {thing}.
Make up a myth that explains why the {animal} has no {part}.
Write a scene for the stage about {theme}, with {k} characters and stage directions.
Describe a {room} in which nobody has lived for {n} years.
Write a story told only by letters between {name} and {other}, who share a secret about {theme}.
Invent a village in {country}: its people, its one rule, and its yearly feast.
Write a detective story in which the {job} did it and the {thing} gives it away.
Write a science-fiction scene: {name} repairs a {thing} on a ship far from home and thinks about {place}.
Describe a {mood} morning at the market of {place}, with its sounds and smells.
Write a short portrait of a woman who works as a {job} and dreams of {hobby}.
Sketch the plot of a film about {theme}: three acts, two turns, one last image.
Write lyrics for a {mood} song about {place}, with a chorus.
Write a {mood} poem from the point of view of a {thing}.
Write eight lines that rhyme about {name}, who is afraid of {animal}s.""".splitlines()

LETTERS = """Write a letter to my landlord: the {thing} in the {room} has been broken for {n} days.
Help me write a {mood} message to {name}, whom I have not seen for {n} months.
Write to the council of {place} and ask for a {place_kind} near the school.
Draft an e-mail to a professor of {subject}: I need {k} more days for my essay on {topic}.
Write a complaint to a shop that sent me {goods} instead of {foods}.
Write a postcard from {place} to my {relative}.
Write a {mood} speech for the wedding of {name} and {other}, who met through {hobby}.
Write an invitation to a party at which everybody comes as {character}.
Write a cover letter: I was a {job} in {place}, now I want to work as a {job2}.
Compose a reply to a friend who cannot decide between {place} and {place2}.
I must tell my team that the meeting about {subject} has moved to Thursday. Write the message.
Write a letter of recommendation for {name}, a {mood} student of {subject}.
Write a toast for my {relative}, who turns {n}0 and loves {hobby}.
Write an apology to {name}: I forgot the {thing} and was late.
Write an announcement for a course in {hobby}, {k} evenings, beginners welcome.
Write a farewell card for a {job} who moves to {country}.
Answer this customer politely: "The {thing} arrived broken, and nobody answers the phone!"
Write a note for the neighbours about noise from my {room} next weekend.
Write a newsletter of a club for {hobby}: last month, next month, and a call for help.""".splitlines()

OPINIONS = """Should {place} close its centre to cars? Give both sides, then your own view.
Do you think that {topic} is taught too early at school?
Is it better to live in a small town or in a city like {place}? Argue for one of them.
My {relative} says that {subject} is useless. What would you answer?
What is more important for a good life, {virtue} or {virtue2}?
Would people be happier without {thing}s?
Make the strongest case you can that everyone should try {hobby} once.
Why do people disagree so much about {topic}?
Write an essay of four paragraphs: what does {virtue} mean today?
Is a {job} more useful to a village than a {job2}? Defend your answer.
Which has changed daily life more, {topic} or {topic2}?
What can the history of {country} teach us about {topic}?
Some say that {virtue} cannot be learned. Discuss.
How would you rank these by importance: {virtue}, {virtue2}, good health, enough money?
Debate with yourself whether museums in {country} should be free.
What would you say to a person who thinks that {topic} is only a fashion?
Review an imaginary book called "{title}".
Was {topic} good or bad for ordinary people?""".splitlines()

ADVICE = """I feel {feeling} since I moved to {place}. What can I do in the evenings?
My {relative} and I have not talked since an argument about {goods}. How do I make the first step?
I have {n} minutes every morning. How can I use them for {hobby}?
My job as a {job} leaves me {feeling}. How do I find out whether I should look for another one?
How do I tell {name} that I do not want to share the {room} any longer?
I get {feeling} before every exam in {subject}. What helps?
My {animal} does not eat since Monday. What should I look for before I call the vet?
I want to save {n}0 dollars a month, but I love {foods} and {goods}. Make a plan.
How can I sleep better? I work as a {job} and come home at {k} in the evening.
We are {k} friends with a small budget who want to see {country}. Where do we begin?
A colleague takes credit for my work on {subject}. What do I do, step by step?
I have to choose between studying {subject} and {subject2}. Which questions should I ask myself?
My son is {k} years old and {feeling} at night. How can I help him?
I promised to cook for {n} people and only have {foods}, onions and flour. Ideas?
I want to learn {language} in {n} weeks before I go to {country}. Is it possible, and how?
How do I keep a conversation going with somebody who only talks about {hobby}?
I am {n}0 years old. Is it too late for {hobby}?
What should I pack for {k} days in {country} in {month}?
How do I clean a {thing} without harsh chemicals?
I lent {name} some money and feel {feeling} about asking for it back.
My flat in {place} is cold in {month}. What can I change without spending much?
How do I become more {mood} when I speak in front of people?""".splitlines()

EXPLAIN = """What is {topic}, and why did it take people so long to understand it?
Teach me {topic} by asking me questions, one after the other. Start with the first.
Explain {topic} first in one sentence, then in one paragraph, then in a page.
I am a {job}. Which part of {topic} could I use at work?
What does somebody who studies {subject} really do all day?
How did {country} come to be what it is today? A short history, please.
Which three ideas of {subject} should everybody know?
Explain the link between {topic} and {topic2}.
What are the main schools of thought about {topic}?
How do you tell good sources on {topic} from bad ones?
What would a timeline of {topic} look like?
Describe how a {thing} works, for a curious child.
What customs should a visitor know before a dinner in {country}?
How is a {thing} made, from the raw material to the shop?
Why do {animal}s behave as they do in winter?
What is the role of {virtue} in {subject}?
Explain to {character} how {topic} works.
Summarise what is known about {topic} in a list of at most {k} points.
What questions about {topic} are still open?
What did people in {country} believe about {topic} {n}0 years ago?
Who were the people behind {topic}, and how did they work together?
Give a lecture of two minutes on {topic} for a {mood} audience.""".splitlines()

IDEAS = """Brainstorm {n} names for a {place_kind} that also sells {foods}.
I want to surprise my {relative} with something to do with {hobby}. {k} ideas, please, cheap ones first.
What could a {job} and a {job2} start together in {place}?
Give me prompts for a diary about {virtue}, one for each day of the week.
Design a board game about {topic}: aim, parts, rules, one example turn.
Plan a lesson on {topic} for {n} children with nothing but paper and {goods}.
Find {k} unusual uses for a {thing} that is past repair.
Invent a festival for {place} in {month}. What happens on each of its {k} days?
Suggest titles for a book about {character} and {theme}.
How could a library bring more young people to {subject}?
Make a menu of {k} courses with {foods} in each of them.
List things that {character} would carry in a bag, with a reason for each.
Give me {k} conversation starters for a dinner with a {job}.
Think of {k} small experiments about {topic} for the kitchen.
Make a checklist for the first week as a {job} in {country}.
What could go wrong at a fair in {place}, and how can each thing be prevented?
Propose a timetable for a Sunday with {hobby}, {foods} and a nap.
Come up with riddles whose answers are: {thing}, {animal}, {part}.
Create a character for a game: name, past, strength, weakness, and a line they often say.""".splitlines()

DIALOGUES = """Write a conversation in which {name} tries to sell a {thing} to {character}.
Write a telephone call between a {job} and a {mood} customer from {place}.
Let {character} and {character2} discuss {topic} over a plate of {foods}.
Write an interview with a {job} who has just given up {hobby}.
Write a talk between a {animal} and a {animal2} about people.
Write a chat between {name} and {other}, who plan a trip to {country} and cannot agree.
Write a quarrel about the {thing} that ends with both of them laughing.
Write what {name} says to a doctor, and what the doctor asks, when {name} feels {feeling}.
Show how a teacher of {subject} and a {mood} parent talk about homework.
Hi! I'm {name} from {place}. What should we talk about?
Hello again. Yesterday we spoke about {topic}; today I want to hear about {topic2}.
Good evening! I had a long day as a {job} and I feel {feeling}. Cheer me up.
Do you like {foods}? What else would you eat if you could?
Tell me a joke about a {job} and a {animal}, and explain why it is funny.
Can you keep me company while I wait for {name}? Ask me something about {hobby}.
What is it like to be you? Answer in the style of {character}.""".splitlines()

REWRITES = """Make this friendlier: "{blunt}"
Rewrite in plain English: "{stiff}"
Turn this into a {mood} paragraph: "{note}"
Say the same in three different ways: "{blunt}"
Write this as {character} would: "{note}"
Make a headline, a tweet and a first sentence of a report from this: "{note}"
What is wrong with the tone of this message, and how would you write it? "{blunt}"
Expand these notes into a short report: {note}
Shorten to ten words: "{stiff}"
Correct the mistakes and explain each: "{wrong}"
Write a question for which this is the answer: "{note}"
Put this into {language}, then explain two of the words: "{note}\"""".splitlines()

BLUNT = """{name}, your report is late again and I had to do everything by myself.
No, we will not refund the {goods}. Read the rules.
Stop calling me about {hobby}.
Your {thing} is in my way. Move it.
The food in your restaurant in {place} was cold, and the {job} was rude.""".splitlines()

STIFF = """It is hereby requested that all {job}s refrain from the consumption of {foods} within the premises.
Owing to circumstances of a technical nature, the delivery of the {goods} will be subject to delay until {month}.
The undersigned wishes to express a certain dissatisfaction with regard to the condition of the {room}.
Participants are advised that proficiency in {language} constitutes a prerequisite for admission to the course.""".splitlines()

NOTES = """{name} opened a {place_kind} in {place} in {month}; {n} guests on the first day; wants a second one in {country}
storm over {place}, {n} trees down, school closed, {job}s worked all night
meeting with {name}: {subject} project, {k} weeks left, {thing} missing, next talk on Friday
the {animal} got out, {name} found it in the {room}, everybody is well
old {thing}, bought by my {relative} in {country}, works again after {n} years""".splitlines()

WRONG = """Yesterday {name} go to {place} and buyed {n} {goods}.
Me and my {relative} has never saw a {animal} before.
If I would have more time, I will learn {language}.
Their is two {thing}s in the {room}, but noone use it.""".splitlines()

REMARKS = """I am a {job} from {place}.
I'm new to this.
My English is not very good, so please use easy words.
I have a {job}'s patience and a child's curiosity.
This is for a school project.
It's raining in {place} and I'm bored.
I have been thinking about this since {month}.
My {relative} could not help me with this.
I only have {k} minutes.
I write for a small newspaper in {country}.
You helped me last time.
Please be honest.""".splitlines()

WISHES = """Keep it under {n}0 words.
Use a {mood} tone.
Give an example.
Write at least {k} paragraphs.
Answer in a list.
No lists, please.
End with a question.
Use short sentences.
Make it {mood} but true.
Then tell me how you would make it better.
Start with the most important point.
Avoid difficult words.
Add a title.
Mention {place}.
Explain your choice at the end.""".splitlines()

KINDS = (ROLES, STORIES, LETTERS, OPINIONS, ADVICE, EXPLAIN, IDEAS, DIALOGUES, REWRITES)

WORDS: dict[str, Sequence[str]] = {
    "name": FIRST_NAMES,
    "place": PLACES,
    "country": COUNTRIES,
    "job": JOBS,
    "topic": [*SCIENCE, *SOCIETY],
    "theme": THEMES,
    "hobby": HOBBIES,
    "goods": GOODS,
    "foods": FOODS,
    "character": CHARACTERS,
    "relative": split_words("mother, father, sister, brother, uncle, aunt, grandmother, neighbour, boss, cousin, daughter"),
    "mood": split_words("""cheerful, gloomy, patient, sarcastic, tender, formal, funny, dramatic, calm, proud, mysterious,
poetic, dry, hopeful, nervous, wise, playful, stern, warm, honest"""),
    "feeling": split_words("lonely, tired, nervous, guilty, homesick, bored, stuck, jealous, overwhelmed, unsure, sad"),
    "subject": split_words("""history, chemistry, philosophy, economics, biology, geography, art, music, physics, law,
medicine, psychology, literature, engineering, politics, astronomy, statistics, archaeology, linguistics, nutrition"""),
    "virtue": split_words("""courage, patience, honesty, curiosity, kindness, freedom, friendship, loyalty, humour, justice,
gratitude, discipline, imagination, modesty, trust, privacy"""),
    "thing": split_words("""radio, teapot, umbrella, ladder, mirror, piano, suitcase, lantern, bicycle, typewriter, sofa,
camera, kettle, wardrobe, telescope, sewing machine, washing machine, heater, fridge, clock"""),
    "animal": split_words("fox, owl, tortoise, cat, heron, badger, camel, crow, goose, donkey, octopus, hedgehog, wolf"),
    "part": split_words("tail, voice, shadow, teeth, feathers, ears, stripes, fur, horns, memory"),
    "room": split_words("kitchen, attic, cellar, bathroom, library, garage, workshop, hall, bedroom, greenhouse"),
    "place_kind": split_words("bakery, playground, bookshop, cinema, swimming pool, café, repair shop, bus stop, garden"),
    "language": split_words("German, French, Spanish, Italian, Portuguese, Dutch"),
    "month": split_words("January, February, April, June, July, September, October, November, December"),
    "title": split_words("""The Second Lighthouse, A Winter of Bees, Nobody's Piano, Seven Kinds of Rain, The Slow Train,
What the Baker Knew, Salt and Paper, The Garden Behind the Wall"""),
    "n": [str(n) for n in range(2, 31)],
    "k": [str(n) for n in range(3, 10)],
}  # fmt: skip

PAIRS = ("place", "job", "topic", "character", "subject", "virtue", "animal")
"""Places of which a template may name a second one, {place2}."""

QUOTED = {"blunt": BLUNT, "stiff": STIFF, "note": NOTES, "wrong": WRONG}


def talk(rng: Random) -> str:
    """One message."""
    request = fill(rng.choice(rng.choice(KINDS)), rng)
    before = [fill(rng.choice(REMARKS), rng)] if rng.random() < 0.25 else []
    behind = [fill(rng.choice(WISHES), rng)] if rng.random() < 0.35 else []
    return " ".join([*before, request, *behind])


def fill(template: str, rng: Random) -> str:
    """A template with drawn words; a second word of a pair is another one."""
    words = {name: rng.choice(choices) for name, choices in WORDS.items()}
    words |= {f"{name}2": rng.choice([word for word in WORDS[name] if word != words[name]]) for name in PAIRS}
    words["other"] = rng.choice([name for name in FIRST_NAMES if name != words["name"]])
    quoted = {name: rng.choice(texts).format_map(words) for name, texts in QUOTED.items()}
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", template.format_map(words | quoted))
