"""`/metrics`, `/healthz`, `/readyz`. Reads memory only; never the database."""

import json
from collections.abc import Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from mindroom.bot.supervisor import PrincipalStatus
from mindroom.core.errors import UserError
from mindroom.core.ids import PrincipalName
from mindroom.core.metrics import Metrics


class OperatorServer:
    """A small HTTP server for probes and Prometheus."""

    def __init__(self, *, metrics: Metrics, statuses: Mapping[PrincipalName, PrincipalStatus]) -> None:
        self._metrics = metrics
        self._statuses = statuses
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes any free one. Raises UserError when the port is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._show_health)
        app.router.add_get("/readyz", self._show_ready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise UserError(
                f"cannot listen on {host}:{port} for metrics and health ({error.strerror}): "
                "another program uses this port; choose one with http.port in the configuration, 0 for any"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening; repeatable."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _show_health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _show_ready(self, _request: web.Request) -> web.Response:
        principals = {
            name: {"ready": status.is_ready, "state": status.state.value, "reason": status.reason} | _owner(status)
            for name, status in self._statuses.items()
        }
        ready = bool(principals) and all(entry["ready"] for entry in principals.values())
        text = json.dumps({"ready": ready, "principals": principals})
        return web.Response(text=text, content_type="application/json", status=200 if ready else 503)


def _owner(status: PrincipalStatus) -> dict[str, object]:
    if (standing := status.standing) is None:
        return {}
    return {"process": standing.owner, "fence": standing.fence, "lease_age_seconds": standing.age_seconds}
