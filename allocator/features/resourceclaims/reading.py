"""
Answers the webhook's query about the requests of a pod's ResourceClaims while the pod is being created.

The webhook has no token, so it queries the allocator in its pod, which reads them (`allocator.workers.claim_reader`).
"""

from __future__ import annotations

from allocator.workers.claim_reader import ClaimReader
from contract.dialects.base import Refusal
from contract.encoding import protocol
from contract.encoding.protocol import ClaimsAnswer
from contract.encoding.reading import Malformed
from runtime.httpserver import Reply, Request, json_reply
from runtime.kubernetes.client import KubeError


def answer(reader: ClaimReader, request: Request) -> Reply:
    """The reply to the webhook's query; 503 if the webhook must try again."""
    try:
        question = protocol.claims_question_from_json(request.json())
    except Malformed as error:
        return json_reply({"error": str(error)}, 400)
    except RecursionError:
        return json_reply({"error": "the body is nested too deeply"}, 400)
    try:
        read = reader.read(question.namespace, question.claims)
    except KubeError as error:
        return json_reply({"error": str(error)}, 503)
    found = ClaimsAnswer(refused=str(read)) if isinstance(read, Refusal) else ClaimsAnswer(read.readings)
    return json_reply(protocol.claims_answer_to_json(found))
