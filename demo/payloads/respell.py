#!/usr/bin/env python3
"""Writes the same JSON document in other words, for demo/run.sh:

    demo/payloads/respell.py stripe/payment_intent.succeeded.json > stripe/payment_intent.succeeded.respelled.json

Members in reverse order, the first letter of every string as a \\u escape, "/" as "\\/", numbers with a fraction or an
exponent, other white space. What it wrote is checked in; the demo itself needs no Python.
"""

import decimal
import json
import sys


def string(text):
    written = json.dumps(text, ensure_ascii=True)[1:-1].replace("/", "\\/")
    if text[:1].isascii() and text[:1].isalpha():
        written = f"\\u{ord(text[0]):04X}" + written[1:]
    return f'"{written}"'


def number(value):
    text = str(value)
    if text.endswith("000"):
        return f"{text[:-3]}e3"
    return f"{text}.00" if text.isdigit() else text


def value(item, depth):
    indent = "\n" + "\t" * depth
    if isinstance(item, dict):
        members = [f"{indent}{string(name)} :  {value(inner, depth + 1)}" for name, inner in reversed(item.items())]
        return "{" + " ,".join(members) + "}"
    if isinstance(item, list):
        return "[ " + " ,\n".join(value(inner, depth + 1) for inner in item) + " ]"
    if isinstance(item, str):
        return string(item)
    if isinstance(item, bool) or item is None:
        return json.dumps(item)
    return number(item)


with open(sys.argv[1], encoding="utf-8") as source:
    print(value(json.load(source, parse_float=decimal.Decimal), 0))
