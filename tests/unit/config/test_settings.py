from __future__ import annotations

from pathlib import Path

import pytest
from tarsy.config.load import loader, settings

ENVIRONMENT = {"DATABASE_URL": "postgresql://u:p@127.0.0.1/t", "TARSY_WEBHOOK_TOKEN": "s3cret"}


def read(
    *,
    environment: dict[str, str] | None = None,
    listen: str = "127.0.0.1:8080",
    role: settings.Role = "all",
    insecure_dev: bool = False,
    metrics_listen: str | None = None,
) -> settings.Settings:
    return settings.operator(
        environment=ENVIRONMENT if environment is None else environment,
        config=Path("platform.yaml"),
        kubeconfig=None,
        listen=listen,
        role=role,
        insecure_dev=insecure_dev,
        metrics_listen=metrics_listen,
    )


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("0.0.0.0:0", "0.0.0.0", 0), ("[::1]:8080", "::1", 8080)],  # noqa: S104
)
def test_settings_are_what_environment_and_flags_say(listen: str, host: str, port: int) -> None:
    loaded = read(listen=listen)
    assert (loaded.listen_host, loaded.listen_port, secret(loaded, "TARSY_WEBHOOK_TOKEN")) == (host, port, "s3cret")
    assert secret(loaded, "DATABASE_URL") == ENVIRONMENT["DATABASE_URL"]
    assert "s3cret" not in repr(loaded)


@pytest.mark.parametrize("listen", ["8080", ":8080", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536"])
def test_invalid_listen_address_is_refused_with_an_example(listen: str) -> None:
    with pytest.raises(
        loader.ConfigError, match=rf"^--listen: '{listen}' is not HOST:PORT, such as 127\.0\.0\.1:8080$"
    ):
        read(listen=listen)


@pytest.mark.parametrize(
    ("metrics_listen", "address", "required"),
    [
        (None, ("127.0.0.1", 9464), False),
        ("0.0.0.0:9464", ("0.0.0.0", 9464), True),  # noqa: S104
        ("[::1]:0", ("::1", 0), True),
        ("off", None, True),
    ],
)
def test_metrics_have_an_address_unless_they_are_off(
    metrics_listen: str | None, address: tuple[str, int] | None, required: bool
) -> None:
    loaded = read(metrics_listen=metrics_listen)
    assert (loaded.metrics_listen, loaded.metrics_required) == (address, required)


@pytest.mark.parametrize("address", ["", "9464", "on", "127.0.0.1:x"])
def test_invalid_metrics_address_is_refused(address: str) -> None:
    with pytest.raises(
        loader.ConfigError, match=rf"^--metrics-listen: '{address}' is not HOST:PORT, such as 127.*off$"
    ):
        read(metrics_listen=address)


@pytest.mark.parametrize("missing", ENVIRONMENT)
@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_variable_is_named(missing: str, empty: bool) -> None:
    environment = {**ENVIRONMENT, missing: ""} if empty else {k: v for k, v in ENVIRONMENT.items() if k != missing}
    with pytest.raises(loader.ConfigError, match=f"^{missing} is not set: "):
        read(environment=environment)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@127.0.0.1:5432/t",
        "postgres://u@[::1]:5432/t?sslmode=require&application_name=x",
        "postgresql://u:p%40ss@one:5432,two/t?target_session_attrs=read-write",
        "postgresql:///t?host=/var/run/postgresql",
        "postgresql://u:p@/t",
    ],
)
def test_a_database_url_is_what_asyncpg_reads(url: str) -> None:
    assert settings.database_url({"DATABASE_URL": url}).read() == url


@pytest.mark.parametrize(
    "url",
    [
        "secret",
        "mysql://u:secret@h/t",
        "postgresql://u:secret@[::1/t",
        "postgresql://u:secret@h:99999/t",
        "postgresql://u:secret@one,,two/t",
        "postgresql://u:secret@h/t?sslmode",
    ],
)
def test_invalid_database_url_is_refused_with_an_example_and_not_shown(url: str) -> None:
    with pytest.raises(loader.ConfigError) as error:
        settings.database_url({"DATABASE_URL": url})
    assert str(error.value) == (
        "DATABASE_URL is not the URL of a Postgres database: it should look like "
        "postgresql://user:password@host:5432/tarsy, special characters in user and password percent-encoded"
    )


def test_loopback_alone_is_served_without_a_token() -> None:
    environment = {"DATABASE_URL": "postgresql://u:p@127.0.0.1/t"}
    assert read(environment=environment, insecure_dev=True).webhook_token is None
    with pytest.raises(loader.ConfigError, match="TARSY_WEBHOOK_TOKEN is set as well: unset it, or leave the flag out"):
        read(environment={**environment, "TARSY_WEBHOOK_TOKEN": "t"}, insecure_dev=True)
    for host in ("0.0.0.0", "10.0.0.1"):  # noqa: S104
        with pytest.raises(
            loader.ConfigError, match=rf"--insecure-dev serves loopback only, not {host}: give --listen"
        ):
            read(environment=environment, listen=f"{host}:8080", insecure_dev=True)


VARIABLES = ("DATABASE_URL", "TARSY_WEBHOOK_TOKEN")


def secret(loaded: settings.Settings, variable: str) -> str | None:
    source = loaded.database_url if variable == "DATABASE_URL" else loaded.webhook_token
    return source.read() if source else None


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_secret_of_a_file_goes_before_the_variables(tmp_path: Path, variable: str) -> None:
    file = tmp_path / "secret"
    file.write_text("postgresql://from/file\n")
    variables = {**ENVIRONMENT, f"{variable}_FILE": str(file)}
    assert secret(read(environment=variables), variable) == "postgresql://from/file"
    assert secret(read(environment={**variables, f"{variable}_FILE": ""}), variable) == ENVIRONMENT[variable]
    without = {name: value for name, value in variables.items() if name != variable}
    assert secret(read(environment=without), variable) == "postgresql://from/file"
    padded = {**ENVIRONMENT, variable: f"{ENVIRONMENT[variable]}\n"}
    assert secret(read(environment=padded), variable) == ENVIRONMENT[variable]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, ": No such file or directory"), (b" \n", " is empty"), (b"\xff", ": no file of UTF-8 text")],
    ids=["no file", "empty", "not UTF-8"],
)
@pytest.mark.parametrize("variable", VARIABLES)
def test_a_file_without_its_secret_is_named_when_it_is_read_and_has_it_later(
    tmp_path: Path, variable: str, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    loaded = read(environment={**ENVIRONMENT, f"{variable}_FILE": str(file)})
    with pytest.raises(settings.SecretError) as error:
        secret(loaded, variable)
    assert str(error.value) == f"{variable}_FILE: the file that it names{problem}"
    file.write_text("postgresql://from/file\n")
    assert secret(loaded, variable) == "postgresql://from/file"


def test_a_file_for_a_token_leaves_no_loopback_open() -> None:
    environment = {"DATABASE_URL": ENVIRONMENT["DATABASE_URL"], "TARSY_WEBHOOK_TOKEN_FILE": "/not/there"}
    with pytest.raises(loader.ConfigError, match="TARSY_WEBHOOK_TOKEN is set as well"):
        read(environment=environment, insecure_dev=True)


def test_invalid_database_url_in_a_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("mysql://u:secret@h/t")
    with pytest.raises(
        loader.ConfigError, match=r"names: DATABASE_URL is not the URL of a Postgres database: "
    ) as error:
        settings.database_url({"DATABASE_URL_FILE": str(file)}).read()
    assert "secret" not in str(error.value)


def test_missing_webhook_token_is_reported_with_how_to_set_it() -> None:
    with pytest.raises(loader.ConfigError, match=r"set it or TARSY_WEBHOOK_TOKEN_FILE, or give --insecure-dev"):
        read(environment={"DATABASE_URL": ENVIRONMENT["DATABASE_URL"]})


@pytest.mark.parametrize("role", ["worker", "controller"])
def test_a_role_without_the_api_needs_no_token(role: settings.Role) -> None:
    environment = {"DATABASE_URL": ENVIRONMENT["DATABASE_URL"], "TARSY_WEBHOOK_TOKEN_FILE": "/not/there"}
    assert read(environment=environment, role=role).webhook_token is None
