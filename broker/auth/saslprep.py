"""SASLprep (RFC 4013): normalises names and passwords that people type, for SCRAM, by the tables of RFC 3454."""

from __future__ import annotations

import stringprep
from unicodedata import ucd_3_2_0 as unicode_3_2

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # unassigned in Unicode 3.2: the text is stored or compared with stored text
)


def saslprep(text: str) -> str:
    """Return `text` as SCRAM compares it. Raises ValueError for what RFC 4013 prohibits, and for an empty result."""
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each)
    )
    prepared = unicode_3_2.normalize("NFKC", mapped)
    if not prepared:
        raise ValueError("empty")
    if any(prohibited(each) for each in prepared for prohibited in _PROHIBITED):
        raise ValueError("a character that SASLprep prohibits")
    if any(stringprep.in_table_d1(each) for each in prepared):  # RFC 3454, 6: right-to-left text
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends or any(stringprep.in_table_d2(each) for each in prepared):
            raise ValueError("right-to-left and left-to-right characters mixed")
    return prepared
