"""SCRAM-SHA-256 against the vector of RFC 7677, against an independent client, and against clients that cheat."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth import scram
from broker.auth.contract import MethodError, Verifier
from broker.auth.saslprep import saslprep
from broker.auth.scram import Exchange
from tests.scram_client import ScramClient

PENCIL = scram.make("pencil", 4096)


def exchange(verifier: Verifier = PENCIL) -> Exchange:
    return Exchange(lambda _name: verifier)


def refused(step: Exchange, data: bytes) -> str:
    with pytest.raises(MethodError) as caught:
        step.step(data)
    assert not step.done
    return str(caught.value)


def test_the_example_of_rfc_7677() -> None:
    verifier = scram.make("pencil", 4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    names = []

    def lookup(name: str) -> Verifier:
        names.append(name)
        return verifier

    server = Exchange(lookup, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert server.done
    assert (server.username, names) == ("user", ["user"])


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=user,"])
def test_an_independent_client(header: str) -> None:
    server, client = exchange(), ScramClient("user", "pencil", header)
    client.check(server.step(client.final(server.step(client.first()))))
    assert server.done
    with pytest.raises(MethodError, match="after the last"):
        server.step(b"n,,n=user,r=x")


def test_wrong_passwords_and_users_that_nothing_matches() -> None:
    server, client = exchange(), ScramClient("user", "pencil2")
    assert refused(server, client.final(server.step(client.first()))) == "wrong user name or password"


def test_two_exchanges_have_two_nonces() -> None:
    first, second = exchange().step(b"n,,n=user,r=x"), exchange().step(b"n,,n=user,r=x")
    assert first != second


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "client-first-message is malformed"),
        (b"\xff", "a SCRAM message that is not UTF-8"),
        (b"n=user,r=x", "client-first-message is malformed"),
        (b"x,,n=user,r=x", "client-first-message is malformed"),
        (b"n,,n=user", "client-first-message is malformed"),
        (b"n,,n=,r=x", "client-first-message is malformed"),
        (b"n,,n=user,r=", "client-first-message is malformed"),
        (b"n,,n=user,r=a b", "client-first-message is malformed"),
        (b"n,,n=user,r=a\x7f", "client-first-message is malformed"),
        (b"n,,r=x,n=user", "client-first-message is malformed"),
        (b"n,,n=us\0er,r=x", "client-first-message is malformed"),
        (b"p=tls-unique,,n=user,r=x", "channel binding is not supported"),
        (b"n,,m=ext,n=user,r=x", "an extension that is not supported"),
        (b"n,a=other,n=user,r=x", "a user may not act as another"),
        (b"n,,n=us=er,r=x", "a user name with an invalid escape"),
        (b"n,,n=us=2cer,r=x", "a user name with an invalid escape"),
        ("n,,n=\u00ad,r=x".encode(), "user name: empty"),
        (b"n,,n=a\x07,r=x", "user name: a character that SASLprep prohibits"),
    ],
)
def test_a_first_message_that_is_refused(message: bytes, why: str) -> None:
    assert refused(exchange(), message) == why


def test_names_are_unescaped_and_prepared() -> None:
    for sent, name in (("a=2Cb=3Dc", "a,b=c"), ("\u2168", "IX"), ("a\u00adb", "ab")):
        server = exchange()
        server.step(f"n,,n={sent},r=x".encode())
        assert server.username == name


def test_a_final_message_must_belong_to_the_first() -> None:
    def final(change: tuple[bytes, bytes]) -> str:
        server, client = exchange(), ScramClient("user", "pencil")
        data = client.final(server.step(client.first()))
        assert change[0] in data
        return refused(server, data.replace(*change))

    assert final((b"c=biws", b"c=eSws")) == "the channel binding flag has changed under way"
    assert final((b"r=client", b"r=klient")) == "the nonce is another"
    assert final((b"c=biws", b"c=bi=ws")) == "client-final-message is malformed"
    assert final((b",p=", b",q=")) == "client-final-message is malformed"
    assert final((b",p=", b",x=ext,p=")) == "wrong user name or password"  # the proof covers the whole message


def test_an_extension_of_the_client_is_proven_with_the_rest() -> None:
    server, client = exchange(), ScramClient("user", "pencil")
    client.bare += ",x=ext"
    client.check(server.step(client.final(server.step(client.first()))))
    assert server.done


def test_a_verifier_is_the_same_when_read_again() -> None:
    assert scram.read(scram.text_of(PENCIL)) == PENCIL
    assert ":" not in scram.text_of(PENCIL)
    assert scram.make("I\u00adX", 4096, b"salt") == scram.make("IX", 4096, b"salt")


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_saslprep_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "", "\u00ad", "\ue000", "\u0221", "a\u0627"])
def test_saslprep_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        saslprep(text)


def test_right_to_left_names_are_fine() -> None:
    assert saslprep("\u0627\u0628") == "\u0627\u0628"


WORDS = ["n", "n,", "y", "a=b", "m=", "n=user", "r=x", "c=biws", "p=", "p=tls", ",", "=", "=2C", "x=y", "\0"]
PIECES = st.lists(st.sampled_from(WORDS) | st.text())


@given(PIECES, PIECES)
def test_any_bytes_are_answered_or_refused(first: list[str], second: list[str]) -> None:
    server = exchange()
    for message in (",".join(first).encode(), "".join(second).encode()):
        try:
            server.step(message)
        except MethodError:
            assert not server.done
            return
    raise AssertionError("nobody knows the password here")
