"""Tokens of vendors, by a table of their formats.

A text is searched for all prefixes at once, and only after a match for the rest of a token. That costs as much as one
pattern; a pattern for each vendor would cost a hundred times as much.

Each row has its source: `gitleaks` (config/gitleaks.toml) or `betterleaks`, its successor, `detect-secrets`
(its plugins), else the vendor's own documentation. A length is the least one known, or less where the prefix alone is
unmistakable, so that a token that was cut is found as well. Where a prefix is short the token has to look random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from tarsy.masking import budgets, edits, markers, rules

Source: TypeAlias = Literal["gitleaks", "betterleaks", "detect-secrets", "vendor"]

_ALPHABETS = {
    "letters and digits": rb"[A-Za-z0-9]",
    "capitals and digits": rb"[A-Z0-9]",
    "hex": rb"[0-9A-Fa-f]",
    "hex and hyphens": rb"[0-9A-Fa-f-]",
    "word": rb"[\w-]",
    "dotted": rb"[\w.=-]",
    "base64": rb"[A-Za-z0-9+/_=-]",
    "percent-encoded": rb"[A-Za-z0-9+/_=%-]",
    "path": rb"[\w/+@-]",
}
_ALNUM, _UPPER, _HEX, _UUID, _WORD, _DOTTED, _BASE64, _ENCODED, _PATH = _ALPHABETS


class Token(NamedTuple):
    """The form of a vendor's tokens: a prefix, and then a minimum number of characters from an alphabet."""

    vendor: str
    prefixes: str
    """Separated by spaces."""
    alphabet: str
    length: int
    source: Source
    kind: Literal["api_key", "aws_access_key", "github_token", "slack_token", "token"] = "token"


TOKEN_FORMATS = (
    Token("1Password", "ops_eyJ", _BASE64, 100, "gitleaks"),
    Token("Adafruit", "aio_", _ALNUM, 28, "vendor"),
    Token("Adobe", "p8e-", _ALNUM, 32, "gitleaks"),
    Token("Age", "AGE-SECRET-KEY-1", _UPPER, 58, "gitleaks"),
    Token("Alibaba Cloud", "LTAI", _ALNUM, 12, "gitleaks", "api_key"),
    Token("Anthropic", "sk-ant-", _WORD, 20, "gitleaks", "api_key"),
    Token("Artifactory", "AKCp", _ALNUM, 60, "gitleaks"),
    Token("Artifactory", "cmVmd", _ALNUM, 59, "gitleaks"),
    Token("Atlassian", "ATATT3", _BASE64, 60, "gitleaks"),
    Token("Atlassian", "ATCTT3", _BASE64, 60, "vendor"),
    Token("AWS", "AKIA ASIA ABIA ACCA", _UPPER, 16, "gitleaks", "aws_access_key"),
    Token("AWS", "A3T", _UPPER, 17, "gitleaks", "aws_access_key"),
    Token("AWS Bedrock", "ABSK", _BASE64, 60, "gitleaks", "api_key"),
    Token("AWS Bedrock", "bedrock-api-key-", _BASE64, 28, "gitleaks", "api_key"),
    Token("Axiom", "xaat- xapt-", _WORD, 36, "vendor"),
    Token("Beamer", "b_", _BASE64, 44, "gitleaks"),
    Token("Bitbucket", "ATBB", _ALNUM, 32, "vendor"),
    Token("Brave", "BSA", _WORD, 24, "betterleaks", "api_key"),
    Token("Brevo", "xkeysib-", _WORD, 64, "gitleaks"),
    Token("Brevo", "xsmtpsib-", _WORD, 64, "vendor"),
    Token("Buildkite", "bkua_ bkpat_ bkaj_", _HEX, 40, "vendor"),
    Token("Canva", "cnvca", _WORD, 51, "betterleaks"),
    Token("Cerebras", "csk-", _ALNUM, 48, "betterleaks", "api_key"),
    Token("Checkly", "cu_", _HEX, 32, "vendor"),
    Token("CircleCI", "CCIPAT_ CCIPRJ_", _WORD, 30, "vendor"),
    Token("ClickHouse", "4b1d", _ALNUM, 38, "gitleaks", "api_key"),
    Token("Clojars", "CLOJARS_", _ALNUM, 60, "gitleaks"),
    Token("Cloudflare", "v1.0-", _UUID, 171, "gitleaks"),
    Token("Cloudflare", "cfut_ cfat_ cfk_", _WORD, 32, "vendor"),
    Token("CockroachDB", "CCDB1_", _WORD, 40, "betterleaks"),
    Token("ConfigCat", "configcat-sdk-1/", _PATH, 45, "betterleaks"),
    Token("Contentful", "CFPAT-", _WORD, 40, "vendor"),
    Token("Databricks", "dapi", _HEX, 32, "gitleaks"),
    Token("Databricks", "dose dkea", _HEX, 32, "vendor"),
    Token("Datadog", "ddapp_ ddpat_", _ALNUM, 30, "vendor"),
    Token("dbt", "dbtc_ dbtu_", _WORD, 30, "vendor"),
    Token("Defined Networking", "dnkey-", _BASE64, 60, "gitleaks"),
    Token("Deno", "ddp_", _ALNUM, 36, "betterleaks"),
    Token("Devin", "apk_user_ apk_", _BASE64, 80, "betterleaks", "api_key"),
    Token("Devin", "cog_", _ALNUM, 52, "betterleaks"),
    Token("DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", _HEX, 32, "gitleaks"),
    Token("Discord", "discord.com/api/webhooks/ discordapp.com/api/webhooks/", _PATH, 60, "vendor"),
    Token("Docker", "dckr_pat_ dckr_oat_", _WORD, 20, "betterleaks"),
    Token("Doppler", "dp.pt.", _DOTTED, 36, "gitleaks"),
    Token("Doppler", "dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", _DOTTED, 36, "vendor"),
    Token("Dropbox", "sl.", _BASE64, 60, "gitleaks"),
    Token("Duffel", "duffel_test_ duffel_live_", _BASE64, 40, "gitleaks"),
    Token("Dynatrace", "dt0c01.", _DOTTED, 60, "gitleaks"),
    Token("Dynatrace", "dt0s01. dt0s02. dt0s03. dt0s08. dt0s16.", _DOTTED, 60, "vendor"),
    Token("EasyPost", "EZAK EZTK", _ALNUM, 54, "gitleaks"),
    Token("Elastic", "essu_", _BASE64, 30, "betterleaks"),
    Token("ElevenLabs", "sk_", _HEX, 48, "betterleaks", "api_key"),
    Token("Endor Labs", "endr+", _WORD, 16, "betterleaks", "api_key"),
    Token("Exoscale", "EXO", _ALNUM, 24, "betterleaks", "api_key"),
    Token("Facebook", "EAAM EAAC", _ALNUM, 100, "gitleaks"),
    Token("Facebook", "EAAB EAAG", _ALNUM, 100, "vendor"),
    Token("Fauna", "fnA", _WORD, 36, "vendor"),
    Token("Figma", "figd_", _WORD, 36, "betterleaks"),
    Token("Figma", "figo_ figr_", _WORD, 36, "vendor"),
    Token("Fireworks AI", "fw_", _ALNUM, 22, "vendor"),
    Token("Flutterwave", "FLWSECK_TEST- FLWPUBK_TEST-", _WORD, 12, "gitleaks"),
    Token("Flutterwave", "FLWSECK- FLWPUBK-", _WORD, 12, "vendor"),
    Token("Fly.io", "fo1_ fm1r_ fm1a_ fm2_", _BASE64, 40, "gitleaks"),
    Token("Frame.io", "fio-u-", _BASE64, 60, "gitleaks"),
    Token("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 16, "gitleaks", "github_token"),
    Token("GitHub", "github_pat_", _WORD, 16, "gitleaks", "github_token"),
    Token("GitLab", "glpat- gldt- glrt- glcbt- glimt- glft- glsoat- glffct- glagent- gloas-", _DOTTED, 16, "gitleaks"),
    Token("GitLab", "glptt-", _HEX, 40, "gitleaks"),
    Token("GitLab", "glrtr-", _DOTTED, 16, "vendor"),
    Token("GitLab", "GR1348941", _WORD, 20, "gitleaks"),
    Token("GitLab", "_gitlab_session=", _ALNUM, 32, "gitleaks"),
    Token("GoCardless", "live_", _BASE64, 40, "gitleaks"),
    Token("Google", "AIza", _WORD, 35, "gitleaks", "api_key"),
    Token("Google", "AQ.Ab8RN6", _WORD, 40, "betterleaks", "api_key"),
    Token("Google", "ya29.", _DOTTED, 16, "vendor"),
    Token("Google", "GOCSPX-", _WORD, 28, "vendor"),
    Token("Google", "1//0", _WORD, 30, "vendor"),
    Token("Grafana", "glc_", _BASE64, 32, "gitleaks"),
    Token("Grafana", "glsa_", _WORD, 41, "gitleaks"),
    Token("Grafana", "eyJrIjoi", _BASE64, 40, "gitleaks"),
    Token("Groq", "gsk_", _ALNUM, 40, "betterleaks", "api_key"),
    Token("Harness", "pat. sat.", _DOTTED, 60, "gitleaks"),
    Token("HashiCorp Vault", "hvs. hvb.", _DOTTED, 16, "gitleaks"),
    Token("HashiCorp Vault", "hvr.", _DOTTED, 16, "vendor"),
    Token("HashiCorp Vault", "s.", _ALNUM, 24, "gitleaks"),
    Token("Heroku", "HRKU-AA", _WORD, 50, "gitleaks"),
    Token("Honeycomb", "hcaik_ hcalk_ hcamk_ hcxik_ hcxlk_ hcxmk_", _ALNUM, 30, "vendor"),
    Token("HubSpot", "pat-na1- pat-na2- pat-eu1-", _UUID, 36, "vendor"),
    Token("Hugging Face", "hf_ api_org_", _ALNUM, 16, "gitleaks"),
    Token("Infracost", "ico-", _ALNUM, 32, "gitleaks"),
    Token("Intra42", "s-s4t2ud- s-s4t2af-", _HEX, 40, "gitleaks"),
    Token("JSON Web Token in base64", "ZXlK", _BASE64, 52, "gitleaks"),
    Token("Klaviyo", "pk_", _ALNUM, 34, "betterleaks", "api_key"),
    Token("LangChain", "lsv2_pt_ lsv2_sk_ ls__", _WORD, 32, "vendor"),
    Token("Langfuse", "sk-lf-", _UUID, 36, "vendor", "api_key"),
    Token("Linear", "lin_api_", _ALNUM, 40, "gitleaks"),
    Token("Linear", "lin_oauth_", _ALNUM, 40, "vendor"),
    Token("Lob", "live_ test_", _HEX, 35, "gitleaks"),
    Token("Lob", "live_pub_ test_pub_", _HEX, 31, "gitleaks"),
    Token("Mailgun", "key- pubkey-", _HEX, 32, "gitleaks", "api_key"),
    Token("Mapbox", "sk.eyJ pk.eyJ", _DOTTED, 40, "vendor"),
    Token("MiniMax", "sk-api-", _WORD, 100, "betterleaks", "api_key"),
    Token("MongoDB Atlas", "mdb_sa_sk_", _WORD, 32, "betterleaks"),
    Token("Netlify", "nfp_ nfc_ nfo_ nfu_", _ALNUM, 32, "vendor"),
    Token("New Relic", "NRAK- NRII-", _WORD, 24, "gitleaks", "api_key"),
    Token("New Relic", "NRRA- NRAA- NRIQ- NRSP-", _WORD, 24, "vendor", "api_key"),
    Token("New Relic", "NRJS-", _HEX, 19, "gitleaks", "api_key"),
    Token("Notion", "ntn_", _ALNUM, 40, "gitleaks"),
    Token("Notion", "secret_", _ALNUM, 43, "vendor"),
    Token("npm", "npm_", _ALNUM, 16, "gitleaks"),
    Token("NuGet", "oy2", _ALNUM, 43, "vendor"),
    Token("NVIDIA", "nvapi-", _WORD, 50, "betterleaks", "api_key"),
    Token("Octopus Deploy", "API-", _UPPER, 26, "gitleaks", "api_key"),
    Token("Okta", "00", _DOTTED, 40, "gitleaks"),
    Token("OpenAI", "sk-proj- sk-svcacct- sk-admin-", _WORD, 20, "gitleaks", "api_key"),
    Token("OpenAI", "sk-None-", _WORD, 20, "vendor", "api_key"),
    Token("OpenAI", "sk-", _ALNUM, 20, "gitleaks", "api_key"),
    Token("OpenRouter", "sk-or-v1-", _HEX, 40, "betterleaks", "api_key"),
    Token("OpenShift", "sha256~", _WORD, 43, "gitleaks"),
    Token("PayPal", "A21AA", _WORD, 60, "vendor"),
    Token("Perplexity", "pplx-", _ALNUM, 40, "gitleaks", "api_key"),
    Token("Pinecone", "pcsk_", _WORD, 40, "vendor", "api_key"),
    Token("Plaid", "access-sandbox- access-development- access-production-", _UUID, 36, "gitleaks"),
    Token("PlanetScale", "pscale_tkn_ pscale_pw_ pscale_oauth_", _DOTTED, 30, "gitleaks"),
    Token("PostHog", "phx_ phc_", _WORD, 40, "betterleaks"),
    Token("Postman", "PMAK-", _UUID, 59, "gitleaks", "api_key"),
    Token("Prefect", "pnu_", _ALNUM, 36, "gitleaks"),
    Token("Prefect", "pnb_", _ALNUM, 36, "vendor"),
    Token("Pulumi", "pul-", _HEX, 40, "gitleaks"),
    Token("PyPI", "pypi-", _WORD, 16, "gitleaks"),
    Token("Razorpay", "rzp_live_ rzp_test_", _ALNUM, 14, "vendor"),
    Token("ReadMe", "rdme_", _ALNUM, 60, "gitleaks"),
    Token("Render", "rnd_", _ALNUM, 28, "vendor"),
    Token("Replicate", "r8_", _ALNUM, 37, "betterleaks"),
    Token("Resend", "re_", _WORD, 30, "vendor"),
    Token("RubyGems", "rubygems_", _HEX, 40, "gitleaks"),
    Token("Scalingo", "tk-us-", _WORD, 48, "gitleaks"),
    Token("SendGrid", "SG.", _DOTTED, 50, "gitleaks"),
    Token("Sentry", "sntrys_", _BASE64, 40, "gitleaks"),
    Token("Sentry", "sntryu_", _HEX, 40, "gitleaks"),
    Token("Sentry", "sntrya_", _HEX, 40, "vendor"),
    Token("SettleMint", "sm_aat_ sm_pat_ sm_sat_", _ALNUM, 16, "gitleaks"),
    Token("Shippo", "shippo_live_ shippo_test_", _HEX, 40, "gitleaks"),
    Token("Shopify", "shpat_ shpca_ shppa_ shpss_", _ALNUM, 16, "gitleaks"),
    Token("Slack", "xoxb- xoxp- xoxs- xoxo- xoxe- xoxe.xoxb- xoxe.xoxp- xapp-", _WORD, 20, "gitleaks", "slack_token"),
    Token("Slack", "xoxa- xoxr-", _WORD, 8, "gitleaks", "slack_token"),
    Token("Slack", "xoxc-", _WORD, 14, "betterleaks", "slack_token"),
    Token("Slack", "xoxd-", _ENCODED, 14, "betterleaks", "slack_token"),
    Token("Slack", "hooks.slack.com/services/ hooks.slack.com/workflows/ hooks.slack.com/triggers/",
         _PATH, 30, "gitleaks", "slack_token"),
    Token("Snyk", "snyk_uat.", _DOTTED, 30, "vendor"),
    Token("SonarQube", "squ_ sqp_ sqa_", _HEX, 40, "gitleaks"),
    Token("SonarQube", "squ_ sqp_ sqa_", _ALNUM, 40, "gitleaks"),
    Token("Sourcegraph", "sgp_", _HEX, 40, "gitleaks"),
    Token("Sourcegraph", "sgp_local_", _HEX, 40, "gitleaks"),
    Token("Sourcegraph", "sgp_", _WORD, 57, "gitleaks"),
    Token("Sourcegraph", "slk_", _WORD, 40, "vendor"),
    Token("Square", "sq0atp-", _WORD, 22, "gitleaks"),
    Token("Square", "sq0csp-", _WORD, 43, "detect-secrets"),
    Token("Square", "sq0idp-", _WORD, 22, "vendor"),
    Token("Square", "EAAA", _WORD, 22, "gitleaks"),
    Token("Stripe", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", _ALNUM, 10, "gitleaks", "api_key"),
    Token("Stripe", "whsec_", _BASE64, 24, "vendor"),
    Token("Supabase", "sbp_", _HEX, 40, "betterleaks"),
    Token("Supabase", "sb_secret_", _WORD, 22, "betterleaks"),
    Token("Tailscale", "tskey- tskey-auth- tskey-api- tskey-client-", _WORD, 20, "vendor"),
    Token("Tavily", "tvly-", _WORD, 24, "vendor", "api_key"),
    Token("Teams", "webhook.office.com/webhookb2/", _PATH, 60, "gitleaks"),
    Token("Tencent Cloud", "AKID", _ALNUM, 32, "vendor", "api_key"),
    Token("Together AI", "tgp_v1_", _WORD, 30, "betterleaks", "api_key"),
    Token("Twilio", "SK", _HEX, 32, "gitleaks", "api_key"),
    Token("Twitch", "oauth:", _ALNUM, 28, "vendor"),
    Token("Twitter", "AAAAAAAAAAAAAAAAAAAAAA", _ENCODED, 80, "gitleaks"),
    Token("Typeform", "tfp_", _DOTTED, 40, "gitleaks"),
    Token("UpCloud", "ucat_", _ALNUM, 24, "betterleaks"),
    Token("Vercel", "vcp_ vci_ vca_ vcr_ vck_", _WORD, 24, "betterleaks"),
    Token("WooCommerce", "ck_ cs_", _HEX, 40, "vendor", "api_key"),
    Token("xAI", "xai-", _ALNUM, 60, "vendor", "api_key"),
    Token("Xata", "xau_", _ALNUM, 30, "vendor"),
    Token("Yandex", "AQVN", _WORD, 35, "gitleaks", "api_key"),
    Token("Yandex", "YC", _WORD, 38, "gitleaks", "api_key"),
    Token("Yandex", "t1.", _DOTTED, 60, "gitleaks"),
)  # fmt: skip

_LONGEST = 1024
"""Bytes of a token that are examined."""
_FOLLOWING = {name: re.compile(unit + rb"++") for name, unit in _ALPHABETS.items()}
_FORMATS_BY_PREFIX: dict[bytes, list[Token]] = {}
for _format in TOKEN_FORMATS:
    for _prefix in _format.prefixes.split():
        _FORMATS_BY_PREFIX.setdefault(_prefix.encode(), []).append(_format)
_PREFIX = rules.rule(
    rb"(?:^|[^A-Za-z0-9]|\\[nrt]|\\u00[0-9A-Fa-f]{2}|%%[0-9A-Fa-f]{2}|\[[0-9;]{0,8}m)(%b)[\w+/=-]"
    % b"|".join(re.escape(prefix) for prefix in sorted(_FORMATS_BY_PREFIX, key=len, reverse=True))
)
"""A prefix at the beginning of a word, also after an escape of JSON, a URL or a coloured line."""
_SHAPES = rules.rule(
    rb"\b(A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}|pat[A-Za-z0-9]{14}\.[0-9a-f]{50,}"
    rb"|(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}\.[\w+/=-]{30,120}"
    rb"|pk_\d{8,9}_[A-Za-z0-9]{32}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|FlyV1 [\w+/=,-]{40,}"
    rb"|(?:sdk|mob|api)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|[0-9a-z]{32}-us\d{1,2}\b|[0-9a-h]{32}-[0-9a-h]{8}-[0-9a-h]{8}\b|[ps]k\.[A-Za-z0-9]{60,}\.[\w-]{22}"
    rb"|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk|[0-9a-f]{36}NRAL|[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{50,})"
    rb"|\b(?:bot)?(\d{5,16}:A[\w-]{34}|\d{15,16}\|[\w-]{27,40})"
    rb"|(?:^|[\\'\"`\s>=:(,])([\w~.]{3}\dQ~[\w~.-]{31,34})"
)
"""1Password, Airtable, Authress, ClickUp, Discord, Fly.io, LaunchDarkly, Mailchimp, Mailgun, Mapbox, MaxMind,
New Relic, Terraform; Telegram and Facebook, after a number; Entra ID."""
_NUMBERED = 2
"""The group of tokens after a number."""
_NUMBER = re.compile(rb"\d++[:|]")
_COST = 14
_SURE = 5
"""The length from which a prefix begins no other words."""
_WORDS = {b"api_org_", b"live_", b"oauth:", b"pubkey-", b"secret_", b"test_"}
"""Longer prefixes that also begin other words."""
_SHORT = 2
_HEAD = 64
"""The first bytes of a token, by which randomness is judged."""
_DIGEST = re.compile(rb"[0-9a-f]++(?:-[0-9a-f]++)*+")
_PART = rb"(?:[A-Z]?+[a-z]++[0-9]{0,2}+|[A-Z]++|[0-9]++)"
_NAME = re.compile(_PART + rb"(?:[-_.]" + _PART + rb")++")
_DIGIT = re.compile(rb"[0-9]")
_NUMBERS = 2
"""Digits at the end of a name, which are ignored."""
_CASE = re.compile(rb"[a-z]++|[A-Z]++")
_SPARSE = 8
"""A random token has at most one separator in so many characters, and two more."""


def find(doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
    """Yield the edits of the tokens and keys of all vendors."""
    done = 0
    for match in budget.metered(_PREFIX.finditer(doc), cost=_COST):
        start, end = match.span(1)
        if start < done:
            continue
        prefix = doc[start:end]
        for token_format in _FORMATS_BY_PREFIX[prefix]:
            following = _FOLLOWING[token_format.alphabet]
            token = following.match(doc, end, end + _LONGEST)
            if token is None or not _is_token(token[0].rstrip(b"."), token_format, prefix=prefix):
                continue
            token_match = following.match(doc, end) or token
            done = end + len(token_match[0].rstrip(b"."))
            yield edits.Edit(start, done, markers.marker(token_format.kind))
            break
    for match in budget.metered(_SHAPES.finditer(doc), cost=_COST):
        group = next(group for group in (1, 2, 3) if match.start(group) >= 0)
        text = match[group]
        if not _is_dummy(text) and (group != _NUMBERED or _looks_random(_NUMBER.sub(b"", text, 1))):
            yield edits.Edit(match.start(group), match.end(group), markers.marker("token"))


def _is_token(text: bytes, token_format: Token, *, prefix: bytes) -> bool:
    """Return whether the text after a prefix is the rest of a token, and no name or dummy."""
    if len(text) < token_format.length or _is_dummy(text):
        return False
    if len(prefix) >= _SURE and prefix not in _WORDS:
        return True
    is_hex = token_format.alphabet in {_HEX, _UUID}
    if (is_hex or len(prefix) <= _SHORT) and len(text) != token_format.length:
        return False
    return is_hex or _looks_random(text)


def _is_dummy(text: bytes) -> bool:
    return len(set(text[:_HEAD])) < len(text[:10]) // 2


def _looks_random(text: bytes) -> bool:
    """Return whether a text looks random: no words with separators or in camel case, and no digest."""
    separators = sum(text.count(separator) for separator in (b"-", b"_", b"."))
    if separators > len(text) // _SPARSE + 2 or _DIGEST.fullmatch(text) or _NAME.fullmatch(text):
        return False
    return _DIGIT.search(text, 0, len(text) - _NUMBERS) is not None or 3 * len(_CASE.findall(text[:_HEAD])) > len(
        text[:_HEAD]
    )
