"""Word problems of a primary-school kind, and a few of mathematics and logic: stories with drawn names and numbers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from recipes.smollm2_head.words import FOODS, GOODS, JOBS, PLACES, names

STORIES = """{a} keeps {n} {goods} on each of {k} shelves. A customer orders {m} of them and {b} adds {j} new ones. How many {goods} are there now?
A {job} in {place} works {k} hours a day at {p} dollars an hour and spends {m} dollars a week on tools. What is left after {j} weeks of five days?
{a} has {r} times as many {goods} as {b}. Together they have {rn} {goods}. How many does {b} have?
A tank holds {h} litres. One pipe fills {k} litres a minute while a leak loses {s} litres a minute. The tank starts with {n} litres. How much water is in it after {j} minutes?
{a} bakes {n} trays of {foods} with {k} on each tray. {q} percent of all {foods} are burnt. The rest is sold in bags of {j}. How many full bags can be sold?
On Monday {a} reads {n} pages. Every day after that the number grows by {s} pages. How many pages has {a} read by the end of Friday?
{a}, {b} and {c} share a bill of {money} dollars. {a} pays {q} percent of it, and the other two split the remainder equally. How much does {b} pay?
A rectangular garden is {n} metres long and {k} metres wide. {a} puts a fence around it that costs {p} dollars per metre and plants one tree for every {j} square metres. What does the fence cost and how many trees are planted?
{a} is {n} years old. In {k} years {a} will be {r} times as old as {b} is now. How old is {b}?
A train travels {h} kilometres in {k} hours, rests for {s} hours and then goes on at {n} kilometres per hour for {j} hours. What is its average speed for the whole journey?
{a} sells {foods} at {p} dollars each, or {j} for {jp} dollars. {b} wants {m} {foods}. What is the least that {b} has to pay?
There are {n} boxes with {k} {goods} and {m} boxes with {j} {goods}. {a} takes out {s} {goods} from each box. How many are left in all the boxes?
A farmer near {place} has {n} cows that give {k} litres of milk a day each. {q} percent is kept for cheese, and it takes {j} litres to make one cheese. How many cheeses can be made in a week?
{a} saves {p} dollars in the first week and doubles the amount every week. After {s} weeks {b} adds {money} dollars. How much money is there?
A class of {h} pupils visits the museum. Tickets cost {p} dollars for a child and {m} dollars for an adult; one adult is needed for every {j} pupils. What does the visit cost?
{a} walks {n} blocks north, {k} blocks east, and {s} blocks south. Each block takes {j} minutes. How long did the walk take, and how many blocks north of the start did it end?
A recipe for {s} people needs {n} grams of flour and {k} eggs. {a} cooks for {j} times as many people but has only {h} grams of flour. How many grams are missing?
{a} printed {h} posters. {b} put up {q} percent of them on Saturday and {n} more on Sunday. {c} found {s} torn ones. How many posters were still unused, if torn ones came from those put up?
Of {h} marbles in a jar, a quarter are green, {n} are blue and the others are white. {a} swaps {s} white marbles for green ones. How many green marbles are there now?
{a} buys {j} {goods} for {p} dollars each and {k} {foods} for {s} dollars each, and gives a {money} dollar voucher. How much change comes back, or how much is missing?
Two clocks show the same time at noon. One gains {s} minutes every hour, the other loses {k} seconds every minute. How far apart are they at {pm} in the evening?
A {job} can finish a task in {k} hours and an apprentice in twice that time. How long do they need together?
{a} scored {n}, {k}, {m} and {j} points in four games. How many points are needed in the fifth game for an average of {n} points?
A hotel in {place} has {k} floors with {n} rooms each. {q} percent of the rooms are taken, and each guest pays {money} dollars per night. How much does the hotel take in {s} nights if every taken room has one guest?
At a fair, {a} won {r} tickets for every game played and played {n} games. A toy costs {j} tickets. After buying {s} toys, how many tickets remain?
{a} cut a rope of {h} centimetres into {s} equal pieces and then trimmed {k} millimetres off each one. How long is a piece now?
A phone costs {money} dollars. It is first reduced by {q} percent and later raised by {q} percent again. What does it cost in the end?
{b} ran {s} laps of {h} metres in {n} minutes. {a} ran {k} metres more in the same time. What was each runner's speed in metres per minute?
In a library, {n} shelves hold {m} books each. {q} percent of the books are novels and {s} novels are borrowed every day. After how many days are all novels out?
{a} mixes {k} litres of juice with {m} litres of water and fills glasses of a quarter litre. {b} drinks {s} glasses. How many glasses are left?
The temperature in {place} was {s} degrees below zero at dawn. It rose by {k} degrees until noon and fell by {j} degrees in the evening. What was it then?
For a party, {a} orders pizzas cut into {j} slices. {n} guests eat {s} slices each and {k} slices are left over. How many pizzas were ordered, at least?
{a} earns {p} dollars for each of the first {n} {goods} and {r} dollars more for every further one. How much does {a} earn for {h} {goods}?
A school collected {h} kilograms of paper in March, {q} percent more in April and {n} kilograms less in May than in April. How much was it in all three months?
{a} starts with {h} points in a quiz. Every right answer is worth {k} points and every wrong one costs {s}. After {m} right and {n} wrong answers, how many points does {a} have?
{a} plants {foods} in {k} rows of {n}. {b} finds that {s} plants in each row have died and replaces half of those. How many plants are alive now?
The lift in a tower in {place} rises {k} floors every {s} seconds. {a} enters on floor {j} and {b} on floor {n}. How long does it take from {a}'s floor to floor {m} above it?
{a} has {money} dollars in coins of {s} and {j} dollars, and {k} of them are {j}-dollar coins. How many {s}-dollar coins are there, and is anything left over?
During a sale, {goods} cost {q} percent less. {b} buys {j} {goods} which used to cost {m} dollars each. How much does {b} save?
{a} wants to paint {s} walls, each {k} metres long and {s} metres high. One tin is enough for {n} square metres and costs {m} dollars. How much must {a} spend?
A {job} drives {h} kilometres every week. The car needs {k} litres for 100 kilometres, and a litre costs {s} dollars. What does the fuel for {j} weeks cost?
{b} owes {a} {money} dollars and pays back {p} dollars every week. After {k} weeks {b} borrows another {n} dollars. How much is owed then?
Out of {h} letters, {a} sorted {q} percent in the morning. In the afternoon {b} sorted {k} letters every minute. How many minutes did {b} need for all of the rest?
{a} and {b} collect stamps. {a} has {n} more than {b}, and {c} has {r} times as many as {a}. {b} has {m} stamps. How many do the three have together?
A bakery in {place} makes {h} loaves a day from Monday to Friday and half as many on Saturday. It is closed on Sunday. Each loaf sells for {s} dollars. How much does it earn in {k} weeks?
{a}'s phone has {q} percent of its charge left. It loses {s} percent every {n} minutes. How long until it is empty?
A theatre has {n} rows of {m} seats. On {pm} evenings it was sold out; on {s} evenings half of the seats stayed empty. How many people came altogether?
{c} divides {h} grams of flour among {k} bowls as evenly as possible and {b} eats what is left over in pancakes. How much is in each bowl, and how much is left over?
{a} needs {k} minutes to wash a car and {b} needs {j} minutes. They start together at 9 o'clock, each with their own cars, and stop at 11 o'clock. How many cars are clean?
{a} types {m} words a minute, and {b} types {n} words a minute. A report has {h}0 words. They each type half of it. Who finishes first, and how much earlier?
A pack of {k} {goods} weighs {h} grams. The empty box weighs {n} grams. How heavy is one of the {goods}?
In a village of {h} people, {q} percent have a bicycle, and {k} families of {s} have a car as well. How many people have a bicycle?
{a} jogs {s} kilometres on the first day, and {j} hundred metres more on each day after it. How far does {a} jog on day {n}?
Each of {k} friends gives a present to each of the others. A present costs {p} dollars. How many presents are there, and what do they cost in all?
A swimming pool is open {k} hours a day. {n} people come every hour, {q} percent of them children. Adults pay {p} dollars and children nothing. What does the pool earn in {s} days?
{a} found {m} shells on the beach near {place}, gave a third of them to {b}, rounded down, and then found {n} more. How many has {a} now?
{b} reads {n} pages in an hour, and {c} reads {k} pages more in an hour. The novel has {h} pages. How much longer does {b} need than {c}?
A gardener buys {j} bags of seeds with {n} seeds each. {q} percent of them will not grow. Each bed has room for {k} plants. How many beds are needed?
{a} swims {k} lengths of a {m}-metre pool on weekdays and {j} lengths on each day of the weekend. How many metres is that in {s} weeks?
There are {h} seats in a plane, and {q} percent of them are taken. At the stop in {place} {n} people get off and {m} get on. How many seats are free?""".splitlines()

ENDINGS = (
    "",
    "",
    "",
    " Explain your reasoning.",
    " Show your work step by step.",
    " Give only the number.",
    " Let's think step by step.",
)

MATHS = """Solve for x: {k}x + {n} = {m}x - {h}
What is {n} percent of {money}?
Simplify the fraction {kn}/{jn}.
What is the greatest common divisor of {kn} and {jn}? Show the steps.
Find the derivative of f(x) = {k}x^3 - {n}x^2 + {j}x.
Find the roots of x^2 - {ssum}x + {sprod} = 0.
A circle has a radius of {k} cm. What are its area and its circumference?
A right triangle has legs of {k} cm and {j} cm. How long is the hypotenuse?
Two dice are rolled. What is the probability that the sum is greater than {s}?
What comes next in the sequence {n}, {n1}, {n2}, {n3}? Explain the rule.
Convert {h} from decimal to binary and to hexadecimal.
If f(x) = {k}x - {n} and g(x) = x^2 + {j}, what is f(g({s}))?
How many ways are there to choose {s} people out of {n}?
A bag has {n} red and {k} black balls. Two are drawn without putting them back. How likely are two red ones?
Evaluate ({n} - {k}) * {j} + {h} / {s} and explain the order of operations.
What is the sum of the whole numbers from {n} to {h}?
Solve the system: x + y = {ssum}, x - y = {s}.
Write {n}^{s} as a product and calculate it.
The sides of a box are {k}, {j} and {s} cm. What is its volume, and what is its surface?
Find the slope of the line through ({k}, {n}) and ({m}, {h}).""".splitlines()

LOGIC = """{a} is taller than {b}. {b} is taller than {c}. Is {c} taller than {a}? Why?
{a}, {b} and {c} finished a race. {b} was not last, and {a} came right behind {c}. In what order did they finish?
All {goods} in the shop are from {place}. Some things from {place} are expensive. Are some of the {goods} expensive for sure?
If it takes {k} machines {k} minutes to make {k} {goods}, how long do {h} machines need for {h} {goods}?
{a} looks at a portrait and says: "The father of this person is my father's only son." Who is in the portrait?
Three boxes are labelled {foods}, {goods} and mixed, and every label is wrong. {b} may take one thing from one box. How can all labels be put right?
One of {a}, {b} and {c} broke the vase. {a} says it was {b}. {b} says it was {c}. {c} says {b} lies. Only one of them tells the truth. Who broke it?
Yesterday was {k} days before a Sunday. What day is it today? Explain.
A farmer wants to cross a river with a wolf, a goat and a cabbage. The boat holds {a} and one of them. How does {a} do it?""".splitlines()


def fill(template: str, rng: Random) -> str:
    """A template with drawn names and numbers."""
    a, b, c = names(rng, 3)
    n, k, s, p = rng.randint(12, 48), rng.randint(4, 11), rng.randint(2, 5), rng.randint(3, 19)
    j, r = rng.randint(3, 9), rng.randint(2, 6)
    roots = rng.randint(1, 9), rng.randint(1, 9)
    step = rng.randint(2, 12)
    return template.format(
        a=a, b=b, c=c, n=n, k=k, s=s, p=p, j=j, r=r,
        m=rng.randint(11, 40), h=rng.randint(10, 60) * 10, q=rng.choice((5, 10, 20, 25, 30, 40, 50, 60, 75)),
        money=rng.randint(8, 90) * 5, rn=(r + 1) * rng.randint(4, 30), jp=j * p - rng.randint(1, p), pm=rng.randint(5, 11),
        kn=k * n, jn=j * n, ssum=sum(roots), sprod=roots[0] * roots[1], n1=n + step, n2=n + 2 * step, n3=n + 3 * step,
        goods=rng.choice(GOODS), foods=rng.choice(FOODS), job=rng.choice(JOBS), place=rng.choice(PLACES),
    )  # fmt: skip


def story(rng: Random) -> str:
    return fill(rng.choice(STORIES), rng) + rng.choice(ENDINGS)


def mathematics(rng: Random) -> str:
    return fill(rng.choice(MATHS), rng)


def logic(rng: Random) -> str:
    return fill(rng.choice(LOGIC), rng)


KINDS: tuple[Callable[[Random], str], ...] = (story, story, story, story, story, mathematics, logic)
