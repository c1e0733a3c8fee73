"""Messages that continue or use what the target wrote before, and messages in other languages.

Further turns of a conversation, tasks over one or more of its own earlier answers (summaries, translations, rewriting,
questions, code reviews: long inputs whose content is different every time), and openings in five languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

FOLLOW_UPS = r"""Why?
Can you make that shorter?
Please say it again in one sentence.
Can you give me an example?
Explain the second point in more detail.
I don't understand. Can you put it in simpler words?
Now write it as a list.
Now write it as a poem.
Translate your answer into French.
Translate your answer into Spanish.
Auf Deutsch, bitte.
What would somebody say who disagrees with you?
Are you sure about that? Check it again.
Make it sound more formal.
Make it funny.
What should I do next?
Thank you! One more question: how
Thanks. And what about
What if
And in the opposite case?
Give me three more.
Which of these is the most important one, and why?
Write a title for it.
Turn this into an e-mail to my boss.
Put the main points into a table.
Give me the answer as JSON.
Can you write code for that?
How long would that take, and what would it cost?
Who could help me with this?
Continue.
Go on, please.
I think there is a mistake in what you wrote. Can you find it?
Rewrite it for a ten-year-old.
Now tell it from another point of view.
How does this compare with
Could you also
Is there""".splitlines()

TASKS = r"""Summarize the following text in two sentences.
Summarize this in one paragraph:
What are the key points of this text? Answer with a list.
Write a headline for this text:
Translate this text into Spanish:
Translate the following into French.
Translate to German:
Translate this into Italian, please:
Rewrite the text below so that it is half as long.
Rewrite this in a friendly tone:
Paraphrase the following text.
Rewrite this as a conversation between two friends:
Correct all mistakes in this text and return it:
Repeat the text below, but replace every name.
Extract all names, numbers and dates from this text:
Write five quiz questions about this text, with answers:
What is missing in this answer? Write a better one.
Is the following text correct? Explain.
Explain this to a child:
Continue this text:
Which question could this be the answer to?
Answer with the help of this text only: who is it about, and what happens?
Classify this text (story, advice, code, letter, explanation, other) and give a reason.
Turn this text into notes:
Give this text a beginning and an ending.""".splitlines()

CODE_TASKS = r"""Explain this code line by line:
Add comments to this code and return it.
Find the errors in this code and correct them:
Rewrite this code in JavaScript:
Rewrite this in Java:
Write unit tests for the following code.
Refactor this code so that it is easier to read:
What is the output of this code?
Add type hints and docstrings:
Make this faster and say what you changed:""".splitlines()

SEVERAL = r"""Compare the two texts below.
Which of these texts is better, and why?
Combine these texts into one.
Summarize each of the following texts in one sentence.
What do these texts have in common?
Read the texts and then answer: which of them would help a beginner more?""".splitlines()

LANGUAGES = r"""Schreibe eine kurze Geschichte über
Schreibe eine E-Mail an
Was ist der Unterschied zwischen
Was ist
Erkläre mir
Wie kann ich
Warum
Wer war
Nenne fünf
Gib mir ein Rezept für
Übersetze ins Englische: Die
Übersetze ins Deutsche: The
Fasse diesen Text zusammen: In
Ich möchte
Kannst du mir
Écris une histoire sur
Écris un poème sur
Écris une lettre à
Quelle est la différence entre
Qu'est-ce que
Explique-moi
Comment puis-je
Pourquoi
Qui était
Donne-moi cinq
Traduis en anglais : Le
Traduis en français : The
Résume ce texte : Dans
Je voudrais
Peux-tu
Escribe un cuento sobre
Escribe un correo a
¿Cuál es la diferencia entre
¿Qué es
Explícame
¿Cómo puedo
¿Por qué
¿Quién fue
Dame cinco
Dame una receta de
Traduce al inglés: La
Traduce al español: The
Resume este texto: En
Quiero
¿Puedes
Scrivi una storia su
Scrivi una lettera a
Qual è la differenza tra
Che cos'è
Spiegami
Come posso
Perché
Dimmi cinque
Traduci in inglese: Il
Traduci in italiano: The
Vorrei
Escreva uma história sobre
Escreva um e-mail para
Qual é a diferença entre
O que é
Explique
Como posso
Por que
Dê-me cinco
Traduza para o inglês: O
Traduza para o português: The
Gostaria de""".splitlines()

SOURCE_CHARACTERS = 1400


def is_open(message: str) -> bool:
    """Whether the target finishes the message: it does not end like a sentence."""
    return message[-1] not in ".?!"


def follow_up(rng: Random) -> str:
    return rng.choice(FOLLOW_UPS)


def language(rng: Random) -> str:
    return rng.choice(LANGUAGES)


def task(rng: Random, sources: Sequence[str]) -> str:
    """A task over one or two of the sources, which are cut to `SOURCE_CHARACTERS` together."""
    source = rng.choice(sources)
    if rng.random() < 0.15:
        parts = [each[: SOURCE_CHARACTERS // 2] for each in (source, rng.choice(sources))]
        return "\n\n".join([rng.choice(SEVERAL), *(f"Text {n}: {part}" for n, part in enumerate(parts, 1))])
    kinds = CODE_TASKS if "```" in source and rng.random() < 0.8 else TASKS
    parts = [rng.choice(kinds), source[:SOURCE_CHARACTERS]]
    return "\n\n".join(parts if rng.random() < 0.8 else parts[::-1])
