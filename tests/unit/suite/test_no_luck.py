"""No test of the gate depends on how fast the machine is.

Six things are refused, in the tests and in the modules of `tests/support` that they import:

- A sleep, unless it is the last statement of a `while` loop, which looks again after it. A sleep of a minute or more is
  no pause but a side that never answers. `asyncio.sleep(0)` is no sleep.
- A bound under a minute: `asyncio.timeout(5)`, `wait_for(coming, 5)`, `timeout=5`, and `seconds=5` of `patience.limit`.
- A lease under a minute: `lease=timedelta(seconds=2)`, `LEASE = timedelta(seconds=2)`.
- A limit or pause of the product that `setattr` sets to anything but a constant of a minute or more.
- A comparison with a clock.
- A setting of Hypothesis that counts slow draws as a failure.

Zero is allowed for each of them: a pause of 0 s is left out, and a limit of 0 s has passed, on every machine.

Tests marked `leaps` may do all of this, since their seconds are exact (`support.leaping`), and so may functions and
classes of their file that nothing else refers to. A test that replaces a clock of `time` by its own may compare it.
What cannot do without seconds belongs in `tests/nightly`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
GATE = ("unit", "store", "world", "cluster", "e2e", "web")
MINUTE = 60.0
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time", "monotonic_ns", "perf_counter_ns"}
UNITS = {"microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
DURATION = re.compile(r"(SECONDS|MILLISECONDS|TIMEOUT|INTERVAL|PATIENCE|LEASE|HEARTBEAT|PAUSE|DELAY)S?$")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Constants = Mapping[str, float]


parsed = functools.cache(ast.parse)


def called_name(call: ast.Call) -> str:
    """Return the last part of the called name, as `sleep` of `asyncio.sleep(1)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def has_attribute(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(node))


def duration(node: ast.AST, constants: Constants) -> float | None:
    """Return the seconds of a number, a constant of the module or a timedelta of such; None if it cannot be read."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return constants.get(name)
        case ast.BinOp(left=left, op=op, right=right):
            sides = duration(left, constants), duration(right, constants)
            if sides[0] is None or sides[1] is None:
                return None
            match op:
                case ast.Mult():
                    return sides[0] * sides[1]
                case ast.Div() if sides[1]:
                    return sides[0] / sides[1]
                case ast.Add():
                    return sides[0] + sides[1]
        case ast.Call(args=[], keywords=keywords) if called_name(node) == "timedelta":
            parts = [(UNITS.get(keyword.arg or ""), duration(keyword.value, constants)) for keyword in keywords]
            if all(unit is not None and amount is not None for unit, amount in parts):
                return sum((unit or 0.0) * (amount or 0.0) for unit, amount in parts)
    return None


def is_short(node: ast.AST, constants: Constants) -> bool:
    seconds = duration(node, constants)
    return seconds is not None and 0 < seconds < MINUTE


def module_constants(tree: ast.Module) -> dict[str, float]:
    constants: dict[str, float] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            seconds = duration(node.value, constants)
            if seconds is not None:
                constants |= {target.id: seconds for target in targets if isinstance(target, ast.Name)}
    return constants


def leaping(tree: ast.Module) -> set[Definition]:
    """Return the definitions that run on the leaping loop alone."""
    definitions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    if any(isinstance(node, ast.Assign) and has_attribute(node.value, "leaps") for node in tree.body):
        return set(definitions)
    leaps = {node for node in definitions if any(has_attribute(mark, "leaps") for mark in node.decorator_list)}
    referring: dict[str, set[ast.AST]] = {}
    for node in tree.body:
        parameters = node.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {part.arg for part in ast.walk(parameters) if isinstance(part, ast.arg)} if parameters else set()
        for name in names:
            referring.setdefault(name, set()).add(node)
    while True:
        more = {
            node
            for node in definitions
            if node not in leaps and not node.name.startswith("test")
            if (others := referring.get(node.name, set()) - {node}) and others <= leaps
        }
        if not more:
            return leaps
        leaps |= more


def polling_sleeps(tree: ast.AST) -> set[ast.AST]:
    """Return the calls that are the last statement of a `while` loop."""
    calls: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and isinstance(last := node.body[-1], ast.Expr):
            calls.add(last.value.value if isinstance(last.value, ast.Await) else last.value)
    return calls


def call_problem(call: ast.Call, constants: Constants, polls: set[ast.AST]) -> str | None:
    name = called_name(call)
    if name == "sleep" and call not in polls:
        seconds = duration(call.args[0], constants) if call.args else None
        if seconds is None or 0 < seconds < MINUTE:
            return "sleep"
    if name == "timeout" and call.args and is_short(call.args[0], constants):
        return "bound"
    if name == "wait_for" and len(call.args) > 1 and is_short(call.args[1], constants):
        return "bound"
    for keyword in call.keywords:
        is_bound = keyword.arg == "timeout" or (keyword.arg == "seconds" and name == "limit")
        if (is_bound or keyword.arg == "lease") and is_short(keyword.value, constants):
            return "bound" if is_bound else "lease"
        is_list = keyword.arg == "suppress_health_check" and isinstance(keyword.value, ast.List)
        if is_list and not has_attribute(keyword.value, "too_slow"):
            return "slow draws"
    if name == "setattr" and len(call.args) > 1:
        *_, attribute, value = call.args
        seconds = duration(value, constants)
        if not isinstance(attribute, ast.Constant):
            return "patched" if is_short(value, constants) else None
        if DURATION.search(str(attribute.value)) and (seconds is None or 0 < seconds < MINUTE):
            return "patched"
    return None


def reads_clock(node: ast.AST, names: set[str]) -> bool:
    """Whether it is made of the time of a clock."""
    return any(
        (isinstance(part, ast.Name) and part.id in names)
        or (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in CLOCKS
            and not part.args
        )
        for part in ast.walk(node)
    )


def turns_clock(node: ast.AST) -> bool:
    """Whether it replaces a clock of `time`."""
    return any(
        isinstance(part, ast.Call)
        and called_name(part) == "setattr"
        and any(isinstance(argument, ast.Constant) and argument.value in CLOCKS for argument in part.args)
        for part in ast.walk(node)
    )


def clock_comparisons(definition: ast.AST) -> Iterator[int]:
    if turns_clock(definition):
        return
    names: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and reads_clock(node.value, names):
            if not isinstance(node.value, ast.Call | ast.BinOp | ast.Await):
                continue
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(definition):
        if isinstance(node, ast.Compare) and reads_clock(node, names):
            yield node.lineno


def problems(source: str) -> list[tuple[int, str]]:
    """Return line and kind of all that depends on the speed of the machine."""
    tree = parsed(source)
    constants, polls = module_constants(tree), polling_sleeps(tree)
    exempt = leaping(tree) if "leaps" in source else set()
    has_clock = any(f".{clock}()" in source for clock in CLOCKS)
    violations: set[tuple[int, str]] = set()
    for statement in tree.body:
        if statement in exempt:
            continue
        if isinstance(statement, ast.Assign) and not exempt:
            for target in statement.targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id.endswith("LEASE")
                    and is_short(statement.value, constants)
                ):
                    violations.add((statement.lineno, "lease"))
        if has_clock:
            violations |= {(line, "clock") for line in clock_comparisons(statement)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (kind := call_problem(node, constants, polls)):
                violations.add((node.lineno, kind))
    return sorted(violations)


def imported_support(path: Path) -> set[Path]:
    """Return the modules of `tests/support` that a file imports."""
    modules: set[Path] = set()
    for node in ast.walk(parsed(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "support":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "support"]
        else:
            continue
        modules |= {file for name in names if (file := TESTS / (name.replace(".", "/") + ".py")).exists()}
    return modules


def checked_files(folders: tuple[str, ...]) -> set[Path]:
    """Return the files of folders of the gate, and the modules of `tests/support` that they import."""
    files = {path for folder in folders for path in (TESTS / folder).rglob("*.py")}
    fresh = files
    while fresh := {module for path in fresh for module in imported_support(path)} - files:
        files |= fresh
    return files


def test_gate_does_not_depend_on_the_speed_of_the_machine() -> None:
    violations = [
        f"{path.relative_to(TESTS)}:{line} {kind}"
        for path in sorted(checked_files(GATE))
        for line, kind in problems(path.read_text())
    ]
    assert violations == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("time.sleep(0.1)", "sleep"),
        ("await asyncio.sleep(seconds)", "sleep"),
        ("while True: await asyncio.sleep(1); look()", "sleep"),
        ("while not ready(): await asyncio.sleep(0.01)", None),
        ("await asyncio.sleep(0)", None),
        ("await asyncio.sleep(3600)", None),
        ("async with asyncio.timeout(5): pass", "bound"),
        ("await asyncio.wait_for(coming, 0.5)", "bound"),
        ("child.end(timeout=0.5)", "bound"),
        ("async with patience.limit(seconds=SHORT): pass", "bound"),
        ("async with asyncio.timeout(60): pass", None),
        ("child.end(timeout=0)", None),
        ("event = start + timedelta(seconds=5)", None),
        ("await operator.start(lease=timedelta(seconds=20))", "lease"),
        ("await operator.start(lease=timedelta(minutes=10))", None),
        ("monkeypatch.setattr(client, 'LOOK_SECONDS', 0.1)", "patched"),
        ("monkeypatch.setattr('tarsy.client.TIMEOUT', seconds)", "patched"),
        ("monkeypatch.setattr(client, name, 0.1)", "patched"),
        ("monkeypatch.setattr(client, 'LOOK_SECONDS', 0.0)", None),
        ("monkeypatch.setattr(client, 'LOOK_SECONDS', 600.0)", None),
        ("monkeypatch.setattr(client, 'ROWS_MAX', 7)", None),
        ("assert time.monotonic() - began < 30", "clock"),
        ("took = loop.time() - began; assert took > 1", "clock"),
        ("until = time.monotonic() + 3600; lease.renew(until)", None),
        ("monkeypatch.setattr(time, 'time', lambda: 7.0); assert time.time() == 7.0", None),
        ("given(suppress_health_check=[HealthCheck.function_scoped_fixture])", "slow draws"),
        ("given(suppress_health_check=[HealthCheck.too_slow])", None),
    ],
)
def test_each_timing_rule_refuses_exactly_its_own_pattern(line: str, kind: str | None) -> None:
    body = line.replace(": await", ":\n        await").replace("; look()", "\n        look()")
    source = f"SHORT = 1.5\n\nasync def test() -> None:\n    {body}\n"
    assert [problem_kind for _, problem_kind in problems(source)] == ([kind] if kind else [])
    assert problems(source.replace("async def", "@pytest.mark.leaps\nasync def")) == []
    assert problems(f"pytestmark = pytest.mark.leaps\n{source}") == []


def test_short_lease_constant_of_test_module_is_found() -> None:
    assert problems("LEASE = timedelta(seconds=2)") == [(1, "lease")]
    assert problems("LEASE = timedelta(minutes=2)") == []


def test_helper_may_sleep_only_if_all_its_tests_leap() -> None:
    helper = "async def pause() -> None:\n    await asyncio.sleep(1)\n"
    leaping_test = "@pytest.mark.leaps\nasync def test_one() -> None:\n    await pause()\n"
    assert problems(helper + leaping_test) == []
    assert problems(f"{helper}{leaping_test}async def test_two() -> None:\n    await pause()\n") == [(2, "sleep")]


def test_modules_that_tests_import_are_checked_too() -> None:
    files = checked_files(GATE)
    assert TESTS / "support/waiting.py" in files
    assert TESTS / "store/test_work.py" in files
    assert TESTS / "support/browser.py" not in checked_files(("store",))
