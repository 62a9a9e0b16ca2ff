"""The closed vocabulary of the demonstration voice: which English words it speaks as words.

All words are lower case and of one sound each. What stands in no group is spoken letter by letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase
from types import MappingProxyType

_GROUPS = {
    "digits": "zero one two three four five six seven eight nine",
    "teens": "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
    "tens": "twenty thirty forty fifty sixty seventy eighty ninety",
    "scales": "hundred thousand million billion",
    "arithmetic": "point minus plus times equals half quarter quarters thirds",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth",
    "tens_ordinals": "twentieth thirtieth",
    "weekdays": "monday tuesday wednesday thursday friday saturday sunday",
    "months": "january february march april may june july august september october november "
    "december",
    "times_of_day": "morning afternoon evening night noon midnight",
    "days_near": "today tomorrow yesterday now",
    "spans": "minute hour day week month year",
    "spans_many": "seconds minutes hours days weeks months years",
    "money": "dollar dollars cent cents pound pounds euro euros pence",
    "units": "percent degree degrees celsius fahrenheit kilometer kilometers meters "
    "centimeters kilogram kilograms mile miles foot feet per",
    "colours": "red blue green yellow black white brown orange purple pink gray silver",
    "things": "house car book door window table chair room box clock phone picture "
    "garden kitchen train bus plane",
    "places": "city street school market river mountain",
    "food": "water milk coffee bread apple egg",
    "nature": "sun moon sky rain snow tree bird",
    "persons": "mother father sister brother doctor friend man woman boy girl",
    "animals": "dog cat",
    "sounds": "music song story game",
    "plurals": "books cars dogs houses birds trees flowers friends children people apples",
    "past_on_things": "saw bought found took made opened wanted lost",
    "past_of_way": "went came walked",
    "past_of_rest": "stayed waited started arrived",
    "base_on_things": "see find take open hear show need like",
    "base_of_rest": "wait stay listen help learn play sing",
    "base_of_way": "go come",
    "present_on_things": "has likes wants needs",
    "other_verbs": "have costs ask",
    "adjectives": "big small old young new long short good bad happy sad warm cold hot fast slow "
    "quiet loud clean full beautiful easy important strong ready",
    "determiners": "the a an my your his this that some every",
    "pronouns": "i you he she it we they me",
    "prepositions": "in on at with from to of for under near before after about",
    "conjunctions": "and but or because when while if than",
    "auxiliaries": "is are was were will can must",
    "adverbs": "not very also never again here there more less where",
    "greetings": "hello hi bye goodbye thank please sorry welcome how fine yes no",
    "demonstration": "voice speech server model computer demonstration language text word "
    "words number numbers name call speak test",
}

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(words.split()) for name, words in _GROUPS.items()}
)
WORDS: tuple[str, ...] = tuple(sorted(word for words in GROUPS.values() for word in words))
"""Every word once, sorted."""

LETTERS: tuple[str, ...] = tuple(ascii_lowercase)
"""Spoken by their names; "a" is the article and "i" the pronoun as well, which `WORDS` holds."""

HOMOPHONES: Mapping[str, str] = MappingProxyType(
    {
        "for": "four",
        "to": "two",
        "hear": "here",
        "c": "see",
        "r": "are",
        "u": "you",
    }
)
"""From a word or a letter to the word that sounds the same and stands for both in comparisons."""
