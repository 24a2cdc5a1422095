"""Tokens that vendors give a look of their own, as a table of facts.

A prefix is what a text is searched for, all of them at once; only where one stands is it looked whether a token
follows. That costs no more than one pattern, where a pattern for each vendor costs a hundred.

Facts only: where a prefix is as short as two letters the token has to look random as well. The sources: `gitleaks`
(config/gitleaks.toml), `detect-secrets` (its plugins), else the vendor's own documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from tarsy.masking import edits, efforts, rules

Source: TypeAlias = Literal["gitleaks", "detect-secrets", "vendor"]

_ALPHABETS = {
    "letters and digits": rb"[A-Za-z0-9]",
    "capitals and digits": rb"[A-Z0-9]",
    "hex": rb"[0-9A-Fa-f]",
    "word": rb"[\w-]",
    "dotted": rb"[\w.-]",
    "base64": rb"[A-Za-z0-9+/_=-]",
}
_ALNUM, _UPPER, _HEX, _WORD, _DOTTED, _BASE64 = _ALPHABETS


class Fact(NamedTuple):
    """What a vendor's tokens look like: a prefix, and at least so many characters of an alphabet behind it."""

    vendor: str
    prefixes: str
    """Separated by spaces."""
    alphabet: str
    length: int
    source: Source
    kind: Literal["api_key", "token"] = "token"


FACTS = (
    Fact("1Password", "ops_eyJ", _BASE64, 100, "gitleaks"),
    Fact("1Password", "A3-", _WORD, 30, "gitleaks"),
    Fact("Adafruit", "aio_", _ALNUM, 28, "vendor"),
    Fact("Adobe", "p8e-", _ALNUM, 32, "gitleaks"),
    Fact("Age", "AGE-SECRET-KEY-1", _UPPER, 58, "gitleaks"),
    Fact("Alibaba Cloud", "LTAI", _ALNUM, 12, "gitleaks", "api_key"),
    Fact("Anthropic", "sk-ant-", _WORD, 20, "gitleaks", "api_key"),
    Fact("Artifactory", "AKCp", _ALNUM, 60, "gitleaks"),
    Fact("Artifactory", "cmVmd", _ALNUM, 59, "gitleaks"),
    Fact("Atlassian", "ATATT3 ATCTT3", _BASE64, 60, "gitleaks"),
    Fact("AWS", "AKIA ASIA ABIA ACCA", _UPPER, 16, "gitleaks", "api_key"),
    Fact("AWS Bedrock", "ABSK bedrock-api-key-", _BASE64, 60, "gitleaks", "api_key"),
    Fact("Axiom", "xaat- xapt-", _WORD, 36, "vendor"),
    Fact("Beamer", "b_", _BASE64, 44, "gitleaks"),
    Fact("Bitbucket", "ATBB", _ALNUM, 32, "vendor"),
    Fact("Brevo", "xkeysib- xsmtpsib-", _WORD, 64, "gitleaks"),
    Fact("Buildkite", "bkua_ bkpat_ bkaj_", _HEX, 40, "vendor"),
    Fact("Checkly", "cu_", _HEX, 32, "vendor"),
    Fact("CircleCI", "CCIPAT_ CCIPRJ_", _WORD, 30, "vendor"),
    Fact("Clojars", "CLOJARS_", _ALNUM, 60, "gitleaks"),
    Fact("Cloudflare", "v1.0-", _WORD, 60, "gitleaks"),
    Fact("Cloudflare", "cfut_ cfat_ cfk_", _WORD, 32, "vendor"),
    Fact("CockroachDB", "CCDB1_", _WORD, 40, "vendor"),
    Fact("Contentful", "CFPAT-", _WORD, 40, "vendor"),
    Fact("Databricks", "dapi dose dkea", _HEX, 32, "gitleaks"),
    Fact("Datadog", "ddapp_ ddpat_", _ALNUM, 30, "vendor"),
    Fact("dbt", "dbtc_ dbtu_", _WORD, 30, "vendor"),
    Fact("Defined Networking", "dnkey-", _WORD, 60, "gitleaks"),
    Fact("DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", _HEX, 32, "gitleaks"),
    Fact("Docker", "dckr_pat_ dckr_oat_", _WORD, 20, "vendor"),
    Fact("Doppler", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", _DOTTED, 36, "gitleaks"),
    Fact("Dropbox", "sl.", _BASE64, 60, "gitleaks"),
    Fact("Duffel", "duffel_test_ duffel_live_", _BASE64, 40, "gitleaks"),
    Fact("Dynatrace", "dt0c01. dt0s01. dt0s02. dt0s03. dt0s08. dt0s16.", _DOTTED, 60, "gitleaks"),
    Fact("EasyPost", "EZAK EZTK", _ALNUM, 54, "gitleaks"),
    Fact("Elastic", "essu_", _BASE64, 30, "vendor"),
    Fact("ElevenLabs", "sk_", _HEX, 48, "vendor", "api_key"),
    Fact("Facebook", "EAAM EAAC EAAB EAAG", _ALNUM, 60, "gitleaks"),
    Fact("Fauna", "fnA", _WORD, 36, "vendor"),
    Fact("Figma", "figd_ figo_ figr_", _WORD, 36, "vendor"),
    Fact("Fireworks AI", "fw_", _ALNUM, 22, "vendor"),
    Fact("Flutterwave", "FLWSECK_TEST- FLWSECK-", _WORD, 12, "gitleaks"),
    Fact("Fly.io", "fo1_ fm1_ fm1r_ fm1a_ fm2_", _BASE64, 40, "gitleaks"),
    Fact("Frame.io", "fio-u-", _BASE64, 60, "gitleaks"),
    Fact("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 16, "gitleaks"),
    Fact("GitHub", "github_pat_", _WORD, 16, "gitleaks"),
    Fact("GitLab", "glpat- glptt- gldt- glrt- glrtr- glcbt- glimt- glft- glsoat- glffct- glagent- gloas-", _DOTTED, 16,
         "gitleaks"),
    Fact("GitLab", "GR1348941", _WORD, 20, "gitleaks"),
    Fact("GoCardless", "live_", _BASE64, 40, "gitleaks"),
    Fact("Google", "AIza", _WORD, 35, "gitleaks", "api_key"),
    Fact("Google", "ya29.", _DOTTED, 16, "vendor"),
    Fact("Google", "GOCSPX-", _WORD, 28, "vendor"),
    Fact("Google", "1//0", _WORD, 30, "vendor"),
    Fact("Grafana", "glc_", _BASE64, 32, "gitleaks"),
    Fact("Grafana", "glsa_", _WORD, 41, "gitleaks"),
    Fact("Grafana", "eyJrIjoi", _BASE64, 60, "gitleaks"),
    Fact("Groq", "gsk_", _ALNUM, 40, "vendor", "api_key"),
    Fact("Harness", "pat. sat.", _DOTTED, 60, "gitleaks"),
    Fact("HashiCorp Vault", "hvs. hvb. hvr.", _DOTTED, 16, "gitleaks"),
    Fact("HashiCorp Vault", "s.", _ALNUM, 24, "gitleaks"),
    Fact("Heroku", "HRKU-AA", _WORD, 50, "gitleaks"),
    Fact("Honeycomb", "hcaik_ hcalk_ hcamk_ hcxik_ hcxlk_ hcxmk_", _ALNUM, 30, "vendor"),
    Fact("HubSpot", "pat-na1- pat-na2- pat-eu1-", _WORD, 36, "vendor"),
    Fact("Hugging Face", "hf_ api_org_", _ALNUM, 16, "gitleaks"),
    Fact("Infracost", "ico-", _ALNUM, 32, "gitleaks"),
    Fact("Intra42", "s-s4t2ud- s-s4t2af-", _HEX, 40, "gitleaks"),
    Fact("LangChain", "lsv2_pt_ lsv2_sk_ ls__", _WORD, 32, "vendor"),
    Fact("Langfuse", "sk-lf-", _WORD, 36, "vendor", "api_key"),
    Fact("Linear", "lin_api_ lin_oauth_", _ALNUM, 40, "gitleaks"),
    Fact("Lob", "live_ test_", _HEX, 35, "gitleaks"),
    Fact("Mailgun", "key- pubkey-", _HEX, 32, "gitleaks", "api_key"),
    Fact("Mapbox", "sk.eyJ pk.eyJ", _DOTTED, 40, "gitleaks"),
    Fact("MongoDB Atlas", "mdb_sa_sk_", _WORD, 32, "vendor"),
    Fact("Netlify", "nfp_ nfc_ nfo_ nfu_", _ALNUM, 32, "vendor"),
    Fact("New Relic", "NRAK- NRII- NRRA- NRAA- NRIQ- NRSP-", _WORD, 24, "gitleaks", "api_key"),
    Fact("New Relic", "NRJS-", _HEX, 19, "gitleaks", "api_key"),
    Fact("Notion", "ntn_ secret_", _ALNUM, 40, "gitleaks"),
    Fact("npm", "npm_", _ALNUM, 16, "gitleaks"),
    Fact("NuGet", "oy2", _ALNUM, 43, "vendor"),
    Fact("NVIDIA", "nvapi-", _WORD, 50, "vendor", "api_key"),
    Fact("Octopus Deploy", "API-", _UPPER, 26, "gitleaks", "api_key"),
    Fact("OpenAI", "sk-proj- sk-svcacct- sk-admin- sk-None-", _WORD, 20, "gitleaks", "api_key"),
    Fact("OpenAI", "sk-", _ALNUM, 20, "gitleaks", "api_key"),
    Fact("OpenRouter", "sk-or-v1-", _HEX, 40, "vendor", "api_key"),
    Fact("OpenShift", "sha256~", _WORD, 43, "gitleaks"),
    Fact("PayPal", "A21AA", _WORD, 60, "vendor"),
    Fact("Perplexity", "pplx-", _ALNUM, 40, "gitleaks", "api_key"),
    Fact("Pinecone", "pcsk_", _WORD, 40, "vendor", "api_key"),
    Fact("Plaid", "access-sandbox- access-development- access-production-", _WORD, 36, "gitleaks"),
    Fact("PlanetScale", "pscale_tkn_ pscale_pw_ pscale_oauth_", _DOTTED, 30, "gitleaks"),
    Fact("PostHog", "phx_ phc_", _ALNUM, 40, "vendor"),
    Fact("Postman", "PMAK-", _WORD, 40, "gitleaks", "api_key"),
    Fact("Prefect", "pnu_ pnb_", _ALNUM, 36, "gitleaks"),
    Fact("Pulumi", "pul-", _HEX, 40, "gitleaks"),
    Fact("PyPI", "pypi-", _WORD, 16, "gitleaks"),
    Fact("Razorpay", "rzp_live_ rzp_test_", _ALNUM, 14, "vendor"),
    Fact("ReadMe", "rdme_", _ALNUM, 60, "gitleaks"),
    Fact("Render", "rnd_", _ALNUM, 28, "vendor"),
    Fact("Replicate", "r8_", _ALNUM, 37, "vendor"),
    Fact("Resend", "re_", _WORD, 30, "vendor"),
    Fact("RubyGems", "rubygems_", _HEX, 40, "gitleaks"),
    Fact("Scalingo", "tk-us-", _WORD, 48, "gitleaks"),
    Fact("SendGrid", "SG.", _DOTTED, 50, "gitleaks"),
    Fact("Sentry", "sntrys_ sntryu_ sntrya_", _BASE64, 40, "gitleaks"),
    Fact("SettleMint", "sm_aat_ sm_pat_ sm_sat_", _ALNUM, 16, "gitleaks"),
    Fact("Shippo", "shippo_live_ shippo_test_", _HEX, 40, "gitleaks"),
    Fact("Shopify", "shpat_ shpca_ shppa_ shpss_", _ALNUM, 16, "gitleaks"),
    Fact("Slack", "xoxa- xoxb- xoxp- xoxr- xoxs- xoxo- xoxc- xoxd- xoxe- xoxe.xoxb- xoxe.xoxp- xapp-", _WORD, 14,
         "gitleaks"),
    Fact("Slack", "hooks.slack.com/services/ hooks.slack.com/workflows/ hooks.slack.com/triggers/", r"path", 30,
         "gitleaks"),
    Fact("Snyk", "snyk_uat.", _DOTTED, 30, "vendor"),
    Fact("SonarQube", "squ_ sqp_ sqa_", _HEX, 40, "gitleaks"),
    Fact("Sourcegraph", "sgp_ slk_", _WORD, 40, "gitleaks"),
    Fact("Square", "sq0atp- sq0csp- sq0idp-", _WORD, 20, "gitleaks"),
    Fact("Square", "EAAA", _WORD, 60, "gitleaks"),
    Fact("Stripe", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", _ALNUM, 10, "gitleaks", "api_key"),
    Fact("Stripe", "whsec_", _BASE64, 24, "vendor"),
    Fact("Supabase", "sbp_", _HEX, 40, "vendor"),
    Fact("Supabase", "sb_secret_", _WORD, 22, "vendor"),
    Fact("Tailscale", "tskey- tskey-auth- tskey-api- tskey-client-", _WORD, 20, "vendor"),
    Fact("Tavily", "tvly-", _WORD, 24, "vendor", "api_key"),
    Fact("Tencent Cloud", "AKID", _ALNUM, 32, "gitleaks", "api_key"),
    Fact("Together AI", "tgp_v1_", _WORD, 30, "vendor", "api_key"),
    Fact("Twilio", "SK", _HEX, 32, "gitleaks", "api_key"),
    Fact("Twitch", "oauth:", _ALNUM, 28, "vendor"),
    Fact("Typeform", "tfp_", _DOTTED, 40, "gitleaks"),
    Fact("Vercel", "vcp_ vci_ vca_ vcr_ vck_", _ALNUM, 24, "vendor"),
    Fact("WooCommerce", "ck_ cs_", _HEX, 40, "vendor", "api_key"),
    Fact("xAI", "xai-", _ALNUM, 60, "vendor", "api_key"),
    Fact("Xata", "xau_", _ALNUM, 30, "vendor"),
    Fact("Yandex", "AQVN YCAJE YCM YCN YCP YCO", _WORD, 32, "gitleaks", "api_key"),
    Fact("Yandex", "t1. t1.9", _DOTTED, 60, "gitleaks"),
)  # fmt: skip

_LONGEST = 1024
_FOLLOWING = {name: re.compile(unit + rb"++") for name, unit in _ALPHABETS.items()} | {
    "path": re.compile(rb"[\w/+-]++")
}
_FACTS: dict[bytes, list[Fact]] = {}
for _fact in FACTS:
    for _prefix in _fact.prefixes.split():
        _FACTS.setdefault(_prefix.encode(), []).append(_fact)
_PREFIX = rules.rule(
    rb"(?:^|[^A-Za-z0-9]|\\[nrt])(%b)[A-Za-z0-9]"
    % b"|".join(re.escape(prefix) for prefix in sorted(_FACTS, key=len, reverse=True))
)
_SHAPES = rules.rule(
    rb"\b(\d{8,10}:AA[\w-]{32,}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|[0-9a-f]{32}-us\d{1,2}\b"
    rb"|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{50,}|[0-9a-f]{36}NRAL|[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"
    rb"|pat[A-Za-z0-9]{14}\.[0-9a-f]{50,}|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk|FlyV1 [\w+/=,-]{40,}"
    rb"|(?:sdk|mob|api)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)
"""Telegram, Discord, Mailchimp, Terraform, New Relic, Entra ID, Airtable, MaxMind, Fly.io, LaunchDarkly."""
_COST = 14
_SURE = 5
"""Characters of a prefix that is no word's beginning by chance."""


def find(kind: str, doc: bytes, effort: efforts.Effort) -> Iterator[edits.Edit]:
    """The tokens of this kind."""
    done = 0
    for found in effort.each(_PREFIX.finditer(doc), cost=_COST):
        start, end = found.start(1), found.end(1)
        if start < done:
            continue
        for fact in _FACTS[found[1]]:
            token = _FOLLOWING[fact.alphabet].match(doc, end, end + _LONGEST)
            if token is None:
                continue
            text = token[0].rstrip(b".-")
            if len(text) >= fact.length and _looks_random(text, is_sure=end - start >= _SURE):
                done = end + len(text)
                if fact.kind == kind:
                    yield edits.Edit(start, done, edits.marker(kind))
                break
    if kind == "token":
        for found in effort.each(_SHAPES.finditer(doc), cost=_COST):
            yield edits.Edit(found.start(1), found.end(1), edits.marker(kind))


def _looks_random(text: bytes, *, is_sure: bool) -> bool:
    """Whether it may be drawn by chance: no words with hyphens, no dummy."""
    if len(set(text)) < len(text[:10]) // 2:
        return False
    if is_sure:
        return True
    separators = sum(text.count(separator) for separator in (b"-", b"_", b"."))
    return separators <= len(text) // 8 + 1 and any(48 <= byte <= 57 for byte in text)
