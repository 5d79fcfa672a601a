"""
An API server's MutatingAdmissionPolicies for pods, played beside the Kubernetes kit, which knows no admission by policies.

Their expressions are compiled and evaluated by CEL itself, with what the API server adds to it: the message `JSONPatch`, and
`jsonpatch.escapeKey`. As there, `object` is of no known type, and a mutation must be a list of `JSONPatch`. What fails turns the pod away.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

POLICY, BINDING = "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"
GROUP = "admissionregistration.k8s.io"
WORDS = ("op", "from", "path")
FIELD = descriptor_pb2.FieldDescriptorProto


@cache
def environment() -> Any:
    """What expressions of such policies may name."""
    file = descriptor_pb2.FileDescriptorProto(name="jsonpatch.proto", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name])
    message = file.message_type.add(name="JSONPatch")
    for number, word in enumerate(WORDS, 1):
        message.field.add(name=word, number=number, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    value = {"type": FIELD.TYPE_MESSAGE, "type_name": ".google.protobuf.Value", "label": FIELD.LABEL_OPTIONAL}
    message.field.add(name="value", number=len(WORDS) + 1, **value)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    text = cel.Type.STRING
    escape = cel.Overload(id="escape_key", return_type=text, parameters=[text], impl=_escaped)
    known = [cel.FunctionDecl("jsonpatch.escapeKey", [escape])]
    return cel.NewEnv(descriptor_pool=pool, variables={"object": cel.Type.DYN}, functions=known)


@cache
def compiled(expression: str, returns: str) -> Any:
    """The expression, which must be of the type. Raises for what CEL's checker does not take."""
    made = environment().compile(expression)
    assert str(made.return_type()) == returns, made.return_type()
    return made


def matches(policy: Any, namespace: str) -> bool:
    """Whether the policy is about pods that come into the namespace."""
    about = policy["spec"]["matchConstraints"]
    assert about["resourceRules"] == [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}
    ]
    return bool(about["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": namespace}})


def mutated(policy: Any, pod: Any, patch: Any) -> Any:
    """The pod as the policy makes it; `patch` applies a JSON patch."""
    spec, got = policy["spec"], copy.deepcopy(pod)
    assert (spec["failurePolicy"], spec["reinvocationPolicy"]) == ("Fail", "IfNeeded")
    for one in spec.get("matchConditions") or []:
        if not compiled(one["expression"], "BOOL").eval(data={"object": got}).value():
            return got
    for one in spec["mutations"]:
        assert one["patchType"] == "JSONPatch"
        told = compiled(one["jsonPatch"]["expression"], "LIST<JSONPatch>").eval(data={"object": got})
        got = patch(got, [json_format.MessageToDict(each.value()) for each in told.value()])
    return got


def bound(emulator: Any) -> list[Any]:
    """The policies that are there and that a binding names."""
    names = {one["spec"]["policyName"] for one in emulator.data[(GROUP, BINDING)].values()}
    return [one for one in emulator.data[(GROUP, POLICY)].values() if one["metadata"]["name"] in names]


def play(emulator: Any, patch: Any) -> None:
    """From now on pods that come in are given what policies say: those in `emulator.in_force` or, for None, all that are there."""
    create = emulator.create
    emulator.in_force = None

    def steered(res: Any, ns: Any, body: Any, *others: Any, **more: Any) -> Any:
        if res.plural == "pods":
            for one in bound(emulator) if emulator.in_force is None else emulator.in_force:
                if matches(one, ns):
                    body = mutated(one, body, patch)
        return create(res, ns, body, *others, **more)

    emulator.create = steered


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
