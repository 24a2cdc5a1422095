"""Masking under the platform file in force, and under the next one."""

from __future__ import annotations

import pytest
from tarsy.config.model import platforms
from tarsy.masking import known_secrets
from tarsy.process.runtime import masking

UNMASKED_ALERTS = {"defaults": {"alert_masking": {"enabled": False}}}


def test_another_platform_file_is_masked_by_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ACCESS_TOKEN=cnry4Kd9xQ\njane@example.com at-the-gateway-7"
    process_masking = masking.Masking(known_secrets.KnownSecrets())
    mask = process_masking.mask_alert
    assert mask(text) == "ACCESS_TOKEN=[MASKED:token]\n[MASKED:email] at-the-gateway-7"
    monkeypatch.setenv("GATEWAY", "at-the-gateway-7")
    loaded = platforms.Platform.model_validate(
        {
            "defaults": {"alert_masking": {"pattern_group": "basic"}},
            "llm_providers": {"a": {"type": "openai", "model": "m", "api_key_env": "GATEWAY"}},
        }
    )
    process_masking.adopt(loaded)
    assert mask(text) == "ACCESS_TOKEN=cnry4Kd9xQ\njane@example.com [MASKED:secret]"
    process_masking.adopt(platforms.Platform.model_validate({"defaults": {"alert_masking": {"enabled": False}}}))
    assert mask("password: hunter2x\nat-the-gateway-7") == "password: hunter2x\n[MASKED:secret]"


async def test_prepared_file_masks_its_secrets_and_changes_alert_masking_once_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "password: hunter2x\nat-the-next-gateway-8"
    process_masking = masking.Masking(known_secrets.KnownSecrets())
    mask = process_masking.mask_alert
    monkeypatch.setenv("NEXT_GATEWAY", "at-the-next-gateway-8")
    provider = {"type": "openai", "model": "m", "api_key_env": "NEXT_GATEWAY"}
    following = platforms.Platform.model_validate(UNMASKED_ALERTS | {"llm_providers": {"a": provider}})
    prepared = await process_masking.prepare(following, {})
    assert mask(text) == "password: [MASKED:password]\n[MASKED:secret]"
    prepared.exchange()
    assert mask(text) == "password: hunter2x\n[MASKED:secret]"
