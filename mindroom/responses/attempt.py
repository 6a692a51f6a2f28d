"""ResponseAttemptRunner: one pass of the model loop, measured."""

import time
from dataclasses import dataclass

from mindroom.core.metrics import Metrics
from mindroom.core.ports import ModelPort
from mindroom.core.seams import Seams
from mindroom.responses.loop import LoopRequest, StepResult, run_loop


@dataclass(frozen=True, slots=True)
class ResponseAttemptRunner:
    """Runs the loop of one principal; failed model attempts are counted by the retry listener."""

    port: ModelPort
    seams: Seams
    metrics: Metrics

    async def run(self, request: LoopRequest) -> StepResult:
        """The answer. Raises ModelFailure."""
        started = time.perf_counter()
        step = await run_loop(request, port=self.port, seams=self.seams)
        self.metrics.model_seconds.observe(time.perf_counter() - started)
        self.metrics.model_tokens.labels("input").inc(step.input_tokens)
        self.metrics.model_tokens.labels("output").inc(step.output_tokens)
        return step
