"""Pure: what the room reads when a run has ended, from the model's words or from an error."""

from mindroom.core.content import DeliveryMarker, JsonObject, message_content
from mindroom.core.errors import ModelFailure, ModelFailureKind
from mindroom.core.ids import TurnId, UserId
from mindroom.core.markdown import render
from mindroom.core.values import Stage
from mindroom.outbox.records import answer_delivery_id
from mindroom.responses.assembly import Responder
from mindroom.responses.loop import StepResult
from mindroom.responses.transitions import Answer
from mindroom.turnstore.record import StepRecord, TurnRecord

SLOW_ANSWER_SECONDS = 10.0
"""After this long the requester's client is told, since an edit notifies nobody by itself (E8)."""

_SENTENCES = {
    ModelFailureKind.BAD_REQUEST: "The model did not accept the request.",
    ModelFailureKind.CONTEXT_LENGTH: "This conversation is too long for the model.",
    ModelFailureKind.UNKNOWN: "The model gave no usable answer.",
}


def reference(turn: TurnId) -> str:
    """Short name of a turn that people can quote."""
    return str(turn).replace("-", "")[-10:].upper()


def answered(
    turn: TurnRecord,
    responder: Responder,
    step: StepResult,
    *,
    run_seconds: float,
    first_text_seconds: float | None,
) -> Answer:
    """The model's answer. `first_text_seconds` counts from the start of the run."""
    others = {name: user for name, user in responder.hosted_names.items() if user != responder.user_id}
    rendered = render(step.canonical_text, mentions=others)
    run: JsonObject = {
        "model": step.model_id,
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "duration_ms": round(run_seconds * 1000),
    }
    if first_text_seconds is not None:
        run["first_text_ms"] = round(first_text_seconds * 1000)
    return Answer(
        outcome="answered",
        content=_content(turn, body=rendered.body, html=rendered.html, mentions=rendered.mentions, run=run),
        notify=_notify(turn, rendered.mentions, run_seconds),
        step=StepRecord(
            step=1,
            canonical_text=step.canonical_text,
            replayable_text=step.canonical_text,
            input_tokens=step.input_tokens,
            output_tokens=step.output_tokens,
        ),
        seconds_since_first_text=None if first_text_seconds is None else max(0.0, run_seconds - first_text_seconds),
    )


def failed(turn: TurnRecord, failure: ModelFailure, *, run_seconds: float) -> Answer:
    """A sentence with a reference, never a traceback and never the provider's words (I2)."""
    sentence = _SENTENCES.get(failure.kind, "The model could not answer.")
    body = f"{sentence} (Reference {reference(turn.turn_id)})"
    return Answer(
        outcome="failed",
        content=_content(turn, body=body, html=None, mentions=(), run=None),
        notify=_notify(turn, (), run_seconds),
        step=None,
        seconds_since_first_text=None,
    )


def _notify(turn: TurnRecord, mentions: tuple[UserId, ...], run_seconds: float) -> tuple[UserId, ...]:
    late = (turn.requester,) if run_seconds > SLOW_ANSWER_SECONDS else ()
    return tuple(dict.fromkeys((*mentions, *late)))


def _content(
    turn: TurnRecord, *, body: str, html: str | None, mentions: tuple[UserId, ...], run: JsonObject | None
) -> JsonObject:
    delivery = answer_delivery_id(turn.turn_id, turn.generation)
    return message_content(
        msgtype="m.text",
        body=body,
        html=html,
        mentions=mentions,
        marker=DeliveryMarker(delivery, turn.turn_id, turn.generation, Stage.FINAL, turn.events),
        target=turn.target,
        run=run,
    )
