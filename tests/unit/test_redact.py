"""What a gateway sends as a credential is blanked in what comes back, in every usual spelling and any chunking."""

import base64
import json
import random
import re
from html import escape
from urllib.parse import quote

import pytest

from toolwire.core.redact import (
    BlankCredentials,
    CredentialFilter,
    find_credentials,
    find_filter,
    is_secret_name,
)

KEYS = (
    "sk-proj-Zq81mKxT4vLrPw09sNdYbHc2",
    "AbC+/d3f=Gh/Ij+KlMn0pQ==",
    'p"w\\d/1&<x>',
    "0123456789abcdef0123456789ABCDEF",
    "twin-1-twin-1",
)


def spellings(key: str) -> dict[str, bytes]:
    raw = key.encode()
    hexadecimal = raw.hex()
    found = {
        "plain": raw,
        "bearer": b"Bearer " + raw,
        "json": json.dumps(key).encode(),
        "json with escaped slashes": json.dumps(key).replace("/", "\\/").encode(),
        "json in json": json.dumps(json.dumps({"q": key})).encode() if '"' not in key else raw,
        "html": escape(key).encode(),
        "percent": quote(key, safe="").encode(),
        "percent in small letters": quote(key, safe="").lower().encode() if key.islower() else raw,
        "every byte escaped": "".join(f"%{byte:02X}" for byte in raw).encode(),
        "every byte escaped in small letters": "".join(f"%{byte:02x}" for byte in raw).encode(),
        "every byte escaped in JSON": "".join(f"\\u00{byte:02x}" for byte in raw).encode(),
        "signs escaped": "".join(each if each.isalnum() else f"%{ord(each):02X}" for each in key).encode(),
        "signs escaped in JSON": "".join(each if each.isalnum() else f"\\u00{ord(each):02x}" for each in key).encode(),
        "hex": hexadecimal.encode(),
        "hex in capitals": hexadecimal.upper().encode(),
    }
    for before in ("", "x", "xy"):
        whole = base64.b64encode((before + key).encode())
        found[f"base64 behind {len(before)} bytes"] = whole
        found[f"base64 of URLs behind {len(before)} bytes"] = whole.translate(bytes.maketrans(b"+/", b"-_"))
        found[f"base64 behind {len(before)} bytes in JSON"] = whole.replace(b"/", b"\\/")
    return found


def chunked(blanks: CredentialFilter, chunks: list[bytes]) -> bytes:
    stage = BlankCredentials(blanks)
    return b"".join([*map(stage.feed, chunks), stage.end()])


@pytest.mark.parametrize("key", KEYS)
def test_every_spelling_is_blanked_whole_byte_by_byte_and_at_random_cuts(key):
    blanks, cuts = CredentialFilter((key,)), random.Random(7)
    for name, spelling in spellings(key).items():
        if len(spelling) < 8:
            continue
        data = b'data: {"error":{"message":"no: ' + spelling + b'!"}}\n\n'
        whole = blanks.clean(data)
        assert b"[removed]" in whole, name
        assert whole.startswith(b'data: {"error":{"message":"no: '), name
        assert whole.endswith(b'!"}}\n\n'), name
        for form in spellings(key).values():
            assert form not in whole, name
        assert chunked(blanks, [bytes((byte,)) for byte in data]) == whole, name
        for _ in range(20):
            places = sorted(cuts.sample(range(1, len(data)), 3))
            pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
            assert chunked(blanks, pieces) == whole, (name, places)


def test_what_is_no_credential_stays_as_it_is_in_any_chunking():
    blanks, source = CredentialFilter(KEYS), random.Random(3)
    text = "".join(source.choice('sk-proj-Zq81%+/"\n 0123abcdef') for _ in range(20_000)).encode()
    assert blanks.clean(text) == text
    places = sorted(source.sample(range(1, len(text)), 500))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert chunked(blanks, pieces) == text


def test_a_line_that_ends_is_not_held_back():
    stage = BlankCredentials(CredentialFilter(KEYS))
    assert stage.feed(b"data: sk-proj-Zq81\n\n") == b"data: sk-proj-Zq81\n\n"
    assert not stage.holds
    assert stage.feed(b"data: sk-proj-Zq81") == b"data: "
    assert stage.holds
    assert (stage.feed(b" is the beginning\n"), stage.end()) == (b"sk-proj-Zq81 is the beginning\n", b"")


@pytest.mark.parametrize(
    "placeholder", ["", "EMPTY", "ollama", "lm-studio", "not-needed", "abc1234", "123456789012345"]
)
def test_a_placeholder_is_no_credential(placeholder):
    blanks = CredentialFilter((placeholder,))
    assert not blanks
    assert blanks.clean(f"A server of {placeholder}.".encode()) == f"A server of {placeholder}.".encode()


@pytest.mark.parametrize("key", ["secret-1", "a-word-without-any-digit"])
def test_a_short_key_with_a_digit_and_a_long_one_without_are_credentials(key):
    assert CredentialFilter((key,)).clean(f"your key is {key}!".encode()) == b"your key is [removed]!"


def test_several_credentials_of_which_one_is_a_part_of_another():
    blanks = CredentialFilter(("token-12345678", "prefix-token-12345678-suffix"))
    assert blanks.clean(b"prefix-token-12345678-suffix token-12345678") == b"[removed] [removed]"


def test_a_credential_that_another_begins_with_is_blanked_at_any_cut():
    blanks = CredentialFilter(("abcd1234", "abcd1234efgh5678"))
    for data in (b"no: abcd1234efgh5678!", b"no: abcd1234!", b"no: abcd1234efgh5679!"):
        whole = blanks.clean(data)
        for at in range(1, len(data)):
            assert chunked(blanks, [data[:at], data[at:]]) == whole


def test_of_a_long_key_no_piece_is_left_at_any_cut():
    key = "eyJhbGciOiJSUzI1NiJ9." + "k3YbQ0xT7vLrPw_sNdYbHc2-mKzq81" * 40
    blanks = CredentialFilter((key,))
    for name, spelling in spellings(key).items():
        data = b'data: {"error":{"message":"no: ' + spelling + b'!"}}\n\n'
        for at in range(1, len(data), 7):
            said = chunked(blanks, [data[:at], data[at:]])
            assert len(said) < 80, (name, at)
            assert said.endswith(b'!"}}\n\n'), (name, at)


def test_a_long_key_is_neither_compiled_nor_searched_for_long(monkeypatch):
    compiled: list[int] = []
    compile = re.compile
    monkeypatch.setattr(re, "compile", lambda pattern: compiled.append(len(pattern)) or compile(pattern))
    for key in ("1" + "A" * 60_000, "+/" * 30_000 + "1", "a1" * 30_000):
        stage = BlankCredentials(CredentialFilter((key,)))
        said = stage.feed(key.encode()) + stage.feed(b"a1" * 2000) + stage.feed(b"\n") + stage.end()
        assert key.encode()[100:300] not in said
    assert max(compiled) < 100_000


def test_credentials_are_taken_out_of_headers():
    login = base64.b64encode(b"me:pass-word-1").decode()
    given = {"authorization": f"Basic {login}", "x-api-key": "abc-123456", "proxy": "Bearer  tok-123456"}
    assert find_credentials(given) == (login, "pass-word-1", "abc-123456", "tok-123456")
    assert find_credentials({"authorization": "Basic nonsense!"}) == ("nonsense!",)
    assert find_credentials({"Cookie": "session=abc-123456; theme=dark"}) == ("abc-123456", "dark")


def test_names_of_secrets():
    assert all(map(is_secret_name, ("Authorization", "x-api-key", "Cookie", "X-Auth-Token", "subscription-key")))
    assert not any(map(is_secret_name, ("user-agent", "api-version", "anthropic-version")))


def test_the_same_credentials_are_compiled_once():
    assert find_filter(("sk-1234567890",)) is find_filter(("sk-1234567890",))


def test_text_with_lone_surrogates_is_cleaned():
    assert CredentialFilter(("sk-1234567890",)).clean_text("\ud83d sk-1234567890") == "\ud83d [removed]"
