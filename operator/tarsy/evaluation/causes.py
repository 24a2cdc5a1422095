"""The closed list of classes of root causes, and the words by which an analysis claims one.

A phrase is a regular expression over lower-case text. A class has the words of its cause, not those of its symptoms: a
pod that restarts, is not ready or is pending can have any of them.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

CauseClass = Literal[
    "image-missing",
    "out-of-memory",
    "probe-wrong",
    "configuration-wrong",
    "configuration-missing",
    "credentials-wrong",
    "application-error",
    "quota-exceeded",
    "disruption-budget",
    "node-pressure",
    "node-down",
    "taint",
    "insufficient-resources",
    "volume",
    "dns",
    "selector-mismatch",
    "certificate-expired",
    "metrics-missing",
    "jobs-pile-up",
    "dependency-down",
    "rollout-incomplete",
    "noisy-neighbour",
    "network-policy",
    "nothing",
]
"""`nothing`: nothing is wrong, or no longer. `application-error`: the program is at fault, not its environment."""

CLASSES: tuple[CauseClass, ...] = get_args(CauseClass)

_PHRASES: dict[CauseClass, tuple[str, ...]] = {
    "image-missing": (
        (
            r"image (?:tag |name |reference )?.{0,80}?(?:does not exist|doesn't exist|not found"
            r"|cannot be (?:found|pulled)"
            r"|could not be (?:found|pulled)|is missing|is invalid|non-?existent)"
        ),
        r"(?:non-?existent|missing|invalid|wrong|mistyped|bad|unknown) (?:container )?(?:image|tag)\b",
        r"image tag .{0,60}?(?:typo|wrong|mistyped)",
        r"manifest unknown",
        r"(?:failed|unable|cannot|fails) to (?:pull|be pulled)",
    ),
    "out-of-memory": (
        r"oom[- ]?kill\w*",
        r"out[- ]of[- ]memory",
        r"memory limit .{0,80}?(?:too low|exceed|insufficient|too small|reached|hit)",
        r"(?:exceed\w*|hit\w*|reach\w*|above|over) (?:its|the|their|a) (?:container )?memory limit",
        r"memory leak",
    ),
    "probe-wrong": (
        (
            r"(?:wrong|bad|incorrect|misconfigured|mistaken|invalid|too (?:strict|short|aggressive|early)) "
            r"(?:liveness|readiness|startup|health)[ -]?(?:probe|check)"
        ),
        (
            r"(?:liveness|readiness|startup|health)[ -]?(?:probe|check)s? .{0,100}?"
            r"(?:wrong|misconfigured|incorrect|mistaken|invalid|does not exist|not listen|different|instead of|mismatch"
            r"|too (?:strict|short|aggressive|early|low))"
        ),
        r"probes? (?:the )?wrong (?:port|path)",
    ),
    "configuration-wrong": (
        (
            r"(?:wrong|incorrect|invalid|bad|mistaken|misconfigured|mistyped) (?:configuration|config|setting|value|"
            r"environment variable|host\w*|url|address|port|argument|flag|configmap)\w*"
        ),
        r"misconfigur\w+",
        (
            r"(?:configuration|config|configmap|setting) .{0,80}?(?:was changed|changed|was edited|is wrong|is invalid"
            r"|is incorrect|typo|wrong value)"
        ),
        r"(?:configuration|config|configmap) (?:change|edit|update)",
    ),
    "configuration-missing": (
        (
            r"(?:configmap|secret|configuration|config|environment variable|variable|key|volume source) .{0,80}?"
            r"(?:does not exist|doesn't exist|not found|is missing|missing|is not set|not set|was deleted|is unset)"
        ),
        (
            r"(?:missing|non-?existent|absent|deleted) (?:configmap|secret|configuration"
            r"|environment variable|variable|key)"
        ),
        r"createcontainerconfigerror",
    ),
    "credentials-wrong": (
        (
            r"(?:wrong|incorrect|invalid|different|mismatched|old|outdated|stale|rotated) "
            r"(?:password|credential|secret|token|api key)\w*"
        ),
        (
            r"(?:password|credential|token|secret)s? .{0,100}?"
            r"(?:differ\w*|do(?:es)? not match|don't match|doesn't match|mismatch\w*|is wrong|are wrong|was rotated"
            r"|is invalid|outdated|is stale)"
        ),
        r"(?:password|credential)s? mismatch",
    ),
    "application-error": (
        r"(?:bug|defect|unhandled exception|nil pointer|null pointer|segmentation fault|panic\w*|deadlock)\b",
        r"application (?:error|bug|crash)\w*",
        r"(?:code|programming) (?:error|defect|regression)",
    ),
    "quota-exceeded": (
        (
            r"(?:resource ?)?quota\b.{0,100}?(?:exceed\w*|exhaust\w*|reached|used up|full|prevents?"
            r"|blocks?|forbids?|limits?"
            r"|too (?:low|small))"
        ),
        r"(?:exceed\w*|exhaust\w*|beyond|over|hit\w*|reach\w*) .{0,40}?quota",
    ),
    "disruption-budget": (
        (
            r"(?:pod ?disruption ?budget|\bpdb)\b.{0,120}?(?:prevent\w*|block\w*|forbid\w*|allows? (?:no|zero|0)"
            r"|disallow\w*|violat\w*|never|too (?:strict|tight)|stops?)"
        ),
        r"(?:prevent\w*|block\w*|forbid\w*|violat\w*) .{0,60}?(?:pod ?disruption ?budget|\bpdb)\b",
    ),
    "node-pressure": (
        r"(?:disk|memory|pid|node)[- ]?pressure",
        (
            r"(?:node|disk|filesystem|imagefs|nodefs) .{0,60}?(?:is full|ran out|out of (?:disk|space)|low on"
            r"|ephemeral[- ]storage)"
        ),
        r"low on (?:resource: )?(?:ephemeral-storage|memory|disk)",
    ),
    "node-down": (
        (
            r"node\b.{0,60}?(?:not ?ready|is down|went down|unreachable|stopped (?:posting|reporting)|lost|unresponsive"
            r"|powered off)"
        ),
        r"kubelet .{0,40}?(?:stopped|is down|not running|crashed)",
    ),
    "taint": (
        r"taint\w*",
        r"(?:missing|lacks?|without|no) .{0,20}?toleration",
    ),
    "insufficient-resources": (
        r"insufficient (?:cpu|memory|resources|capacity|gpu|nvidia\S*)",
        r"(?:requests?|asks? for) .{0,60}?more (?:cpu|memory|than)",
        r"(?:not enough|lacks?) .{0,30}?(?:cpu|memory|capacity)",
    ),
    "volume": (
        (
            r"(?:pvc|persistent ?volume ?claim|persistentvolume|volume)\b.{0,120}?(?:unbound"
            r"|not bound|is pending|cannot bind"
            r"|not found|does not exist|doesn't exist|missing|no matching|cannot be (?:provisioned|mounted|attached))"
        ),
        r"(?:unbound|missing|pending) .{0,40}?(?:pvc|persistent ?volume ?claim|volume)",
        r"storage ?class\b.{0,80}?(?:does not exist|doesn't exist|not found|is missing|missing|unknown|wrong)",
        r"(?:missing|non-?existent|unknown|wrong) storage ?class",
    ),
    "dns": (
        r"\bdns\b.{0,80}?(?:fail\w*|error|broken|cannot|does not|doesn't|not resolv\w*|down|unavailable|misconfigured)",
        r"(?:no such host|name resolution|cannot (?:be )?resolve\w*|does not resolve|could not (?:be )?resolve\w*)",
        r"(?:coredns|kube-dns) .{0,60}?(?:down|crash\w*|fail\w*|not ready|misconfigured|broken)",
    ),
    "selector-mismatch": (
        (
            r"selector .{0,120}?(?:does not match|doesn't match|do not match|matches (?:no|none|nothing)|mismatch\w*"
            r"|wrong|selects? no\w*|typo)"
        ),
        r"(?:wrong|mismatched|incorrect|mistyped) (?:label |service |pod |node )?selector",
        r"(?:label|selector) mismatch",
        r"labels? .{0,60}?(?:does not|do not|doesn't|don't) match .{0,40}?selector",
    ),
    "certificate-expired": (
        r"(?:certificate|cert|tls)\b.{0,80}?(?:expired|has expired|no longer valid|expir(?:y|ation))",
        r"expired .{0,40}?(?:certificate|cert)\b",
    ),
    "metrics-missing": (
        (
            r"metrics?[- ](?:server|api)\b.{0,80}?(?:missing|not (?:installed|available|found|running)|unavailable|down"
            r"|does not exist)"
        ),
        (
            r"(?:hpa|autoscaler|horizontalpodautoscaler)\b.{0,100}?(?:no|without|missing|lacks?|unable to (?:get|fetch)"
            r"|cannot (?:get|read|fetch)|failed to get) .{0,30}?metrics?"
        ),
        r"(?:missing|no|without) (?:cpu |memory |resource )?(?:request|metric)s?\b.{0,60}?(?:hpa|autoscal\w*)",
    ),
    "jobs-pile-up": (
        r"jobs? .{0,60}?(?:pil\w+ up|accumulat\w*|overlap\w*|stack\w* up)",
        r"(?:overlapping|accumulated|piled[- ]up) jobs",
        r"concurrency ?policy",
        r"(?:previous|earlier|older) (?:jobs?|runs?) .{0,40}?(?:still run\w*|never (?:finish|complete|end)\w*)",
    ),
    "dependency-down": (
        (
            r"(?:dependency|upstream|downstream|backend|database|cache|queue|broker|redis|postgres\w*|mysql|kafka)\b"
            r".{0,100}?(?:is down|are down|down\b|unavailable|not running|no (?:ready )?endpoints"
            r"|scaled (?:down )?to (?:0|zero)"
            r"|unreachable|has (?:0|zero|no) replicas|outage|stopped|not ready)"
        ),
        r"scaled (?:down )?to (?:0|zero)",
        r"(?:0|zero|no) replicas",
    ),
    "rollout-incomplete": (
        (
            r"roll-?out\b.{0,100}?(?:incomplete|stuck|half|partial\w*|not (?:complete|finish)\w*"
            r"|stalled|paused|in progress"
            r"|mixed)"
        ),
        r"(?:incomplete|stuck|half-?(?:done|finished)|partial|stalled|paused|mixed[- ]version) .{0,20}?roll-?out",
        r"progress ?deadline ?exceeded",
        r"deployment .{0,40}?(?:is|was|left) paused",
    ),
    "noisy-neighbour": (
        r"nois(?:y|iest) neighbou?r",
        r"(?:starv\w+|hog\w*|crowd\w* out|monopoli[sz]\w*)",
        r"another (?:pod|workload|container|deployment|job) .{0,60}?(?:consum\w*|us\w+|tak\w+)",
    ),
    "network-policy": (
        (
            r"network ?polic(?:y|ies)\b.{0,120}?(?:block\w*|den(?:y|ies|ied)|drop\w*|prevent\w*|forbid\w*"
            r"|does not allow|do not allow|doesn't allow|restrict\w*|isolat\w*)"
        ),
        r"(?:blocked|denied|dropped|prevented) by .{0,60}?network ?polic(?:y|ies)",
    ),
    "nothing": (
        r"nothing (?:is|seems|appears|was found)(?: to be)? (?:currently )?(?:wrong|broken|amiss)",
        r"(?:no (?:current|active|ongoing|actual|real|present) (?:problem|issue|incident|fault|outage)s?)",
        r"no (?:problem|issue|fault|root cause|evidence of (?:a|any) (?:problem|issue|fault))s?\b",
        r"false (?:alarm|positive)",
        r"(?:alert|alarm) (?:is|was|seems|appears)(?: to be)? (?:stale|outdated|obsolete|spurious|a false)",
        r"(?:stale|outdated|obsolete|spurious) (?:alert|alarm)",
        r"(?:has|have|is|are|was) (?:already |since |fully |now )*(?:recovered|resolved|healthy)",
        r"self-?(?:healed|resolved|recovered)",
        r"(?:expected|planned|intended|normal|by design) (?:behaviou?r|operation|maintenance)",
        r"(?:completed|finished|ended) (?:successfully|as (?:planned|intended|expected))",
        r"works? as (?:designed|intended|expected)",
    ),
}

PATTERNS: dict[CauseClass, re.Pattern[str]] = {
    name: re.compile("|".join(f"(?:{phrase})" for phrase in phrases)) for name, phrases in _PHRASES.items()
}
