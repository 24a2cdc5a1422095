"""Tokens that have a vendor's look are masked bare, wherever they stand; what only begins like one is not."""

from __future__ import annotations

import random
import string

import pytest
from tarsy.masking import masker, vendors

MASKER = masker.Masker(groups=["security"])
DRAWN_FROM = {
    "capitals and digits": string.ascii_uppercase + "234567",
    "hex": "0123456789abcdef",
    "hex and hyphens": "0123456789abcdef",
    "word": string.ascii_letters + string.digits + "-_",
}


@pytest.mark.parametrize(
    "token_format", vendors.TOKEN_FORMATS, ids=lambda token_format: f"{token_format.vendor} {token_format.prefixes}"
)
def test_a_token_of_each_vendor_is_masked(token_format: vendors.Token) -> None:
    chance = random.Random(9)  # noqa: S311 - a fixed seed, no secret
    letters = DRAWN_FROM.get(token_format.alphabet, string.ascii_letters + string.digits)
    for prefix in token_format.prefixes.split():
        token = prefix + "".join(chance.choices(letters, k=token_format.length - 2)) + "x7".replace("x", letters[0])
        for text in (f"saw {token} once", f'["{token}"]', f"a\n{token}\nb", f'"log\\n{token}\\n"'):
            masked = MASKER.text(text)
            assert token[-8:] not in masked, text
            assert MASKER.text(masked) == masked


WORD = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
SHAPES: dict[str, list[str | tuple[str, int]]] = {
    "1Password": [
        *("A3-", (string.ascii_uppercase, 6), "-", (string.ascii_uppercase + "29", 11)),
        *("-", ("AB29XY", 5), "-", ("AB29XY", 5), "-", ("AB29XY", 5)),
    ],
    "Airtable": ["pat", (WORD, 14), ".", (HEX, 64)],
    "Authress": ["sc_", (WORD, 10), ".", (WORD, 4), ".acc-", (WORD, 12), ".", (WORD, 43)],
    "ClickUp": ["pk_", (string.digits, 8), "_", (WORD, 32)],
    "Discord": ["M", (WORD, 23), ".", (WORD, 6), ".", (WORD, 38)],
    "Entra ID": ["~a.8Q~", (WORD, 34)],
    "Facebook": [(string.digits, 15), "|", (WORD, 27)],
    "Fly.io": ["FlyV1 fm2_", (WORD, 100)],
    "LaunchDarkly": ["sdk-", (HEX, 8), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 4), "-", (HEX, 12)],
    "Mailchimp": [(HEX, 32), "-us21"],
    "Mailgun": [(HEX, 32), "-", (HEX, 8), "-", (HEX, 8)],
    "Mapbox": ["pk.", (WORD, 60), ".", (WORD, 22)],
    "MaxMind": [(WORD, 6), "_", (WORD, 29), "_mmk"],
    "New Relic": [(HEX, 36), "NRAL"],
    "Telegram": [(string.digits, 10), ":A", (WORD, 34)],
    "Terraform": [(WORD, 14), ".atlasv1.", (WORD, 67)],
}


@pytest.mark.parametrize("vendor", SHAPES)
def test_token_recognizable_by_its_shape_is_masked(vendor: str) -> None:
    chance = random.Random(11)  # noqa: S311 - a fixed seed, no secret
    for _ in range(5):
        token = "".join(
            part if isinstance(part, str) else "".join(chance.choices(part[0], k=part[1])) for part in SHAPES[vendor]
        )
        for text in (f"saw {token} once", f'["{token}"]', f"({token})", f"<a>{token}</a>"):
            assert token[-12:] not in MASKER.text(text), text


@pytest.mark.parametrize("before", ["%3D", "\\u003d", "\x1b[32m", "\\n", "://", "_", "="])
def test_token_is_masked_after_any_non_word_character(before: str) -> None:
    token = "glpat-" + "".join(random.Random(12).choices(WORD, k=20))  # noqa: S311 - a fixed seed, no secret
    assert MASKER.text(f"a{before}{token} b") == f"a{before}[MASKED:token] b"


def test_a_long_token_is_masked_to_its_end() -> None:
    token = "".join(random.Random(13).choices(WORD, k=5000))  # noqa: S311 - a fixed seed, no secret
    assert MASKER.text(f"ops_eyJ{token} b") == "[MASKED:token] b"


def test_rest_of_a_value_beside_a_token_is_masked() -> None:
    token = "glpat-" + "".join(random.Random(14).choices(WORD, k=20))  # noqa: S311 - a fixed seed, no secret
    assert MASKER.text(f"API_TOKEN={token}/rest1, next") == "API_TOKEN=[MASKED:token], next"


def test_more_than_a_hundred_vendors_are_known() -> None:
    assert len({token_format.vendor for token_format in vendors.TOKEN_FORMATS}) > 100


@pytest.mark.parametrize(
    "text",
    [
        "pod/sdk-go-v2-credentials-provider-7f9c9d6b5-xk2lp is ready",
        "api-server-deployment-staging-eu-west-1-7f9c9d6b5-xk2lp",
        "pull sha256:9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c",
        "uid 4bf92f35-77b3-4da6-a3ce-929d0e0e4736 at 9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c",
        "test_this_function_does_what_it_should_do_2 and live_after_the_restart_of_node_3",
        "sk-learn, pat.example.com, s.append(x), SG.example, re_match_everything_in_group_1",
        "s.ReadinessTimeoutSeconds, s.makeIngressControllerForTests, s.onlylettersofonecaseinhere",
        "hf_supportedTokenizerTypesForModelMetadata, api_org_OrganizationController",
        "live_migration_of_virtual_machine_instances_failed_at_step_7, access-production-api-eu-west-1-7f9c9d6b5-xk2lp",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cache-key-9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c, secret_9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a",
        "ASIAPACIFICSOUTHEAST, YCbCrColorSpaceConversionMatrixCoefficients, BSAConfigurationForTheServiceMesh2",
        "main.c:12345:AbstractAutowireCapableBeanFactoryInitialization",
        "xoxb-YOUR_TOKEN, xoxb-xxxxxxxxxxx-xxxxxxxxxxx-xxxxxxxxxxx, hf_" + 34 * "x" + ", sgp_" + 40 * "0",
        "t1.micro, oauth:authenticationProviderManagerImplementation, pk_orders_customer_id_created_at_2024",
    ],
)
def test_text_that_only_begins_like_a_token_is_unchanged(text: str) -> None:
    assert MASKER.text(text) == text
