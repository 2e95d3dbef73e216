"""The protocol server: the SDK's low-level Server over the tool table, and the one place where failures are worded."""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread
import mcp_types as wire
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from perdure import __version__, logs, mime, tracing
from perdure.errors import InvalidInput, NotFound, PerdureError, Refused, Unavailable
from perdure.mcp import resources
from perdure.mcp.prompts import Prompt, shown_prompts
from perdure.mcp.resources import RESOURCES, Resource
from perdure.mcp.subscriptions import Subscriptions
from perdure.mcp.tools import Tool, shown_definition, shown_instructions, shown_tools
from perdure.mcp.wording import Answer, Binary
from perdure.service import Service
from perdure.settings import ToolSettings
from perdure.types import FileInfo, Principal

log = logging.getLogger(__name__)

REQUEST_ID = "perdure.request_id"  # in the scope of an HTTP request

Context = ServerRequestContext[Any, Any]  # Any: the SDK's lifespan state, which we do not use
CallerOf = Callable[[Context], Principal]
T = TypeVar("T")

CALLS_AT_ONCE = 16  # of reads, and of writes: reads do not queue behind writes that wait for a lock
QUEUE_S = 10.0  # behind those; what has begun ends too, long before the minute that clients give a call


Outcome = Literal["ok", "refused", "unavailable", "failed", "busy"]


@dataclass(frozen=True, slots=True)
class Call:
    """How a tool call ended.

    refused: for what was asked; unavailable: the store cannot do it now; failed: a bug; busy: it was not begun.
    """

    tool: str
    seconds: float
    outcome: Outcome
    degraded: bool
    """Whether the answer says that it is weaker than it should be."""


OnCall = Callable[[Call], None]


class Queued(Exception):
    """A call waited too long for its turn and was not begun."""


def build_server(
    service: Service | None,
    tools: ToolSettings,
    caller_of: CallerOf,
    on_call: OnCall | None = None,
    *,
    one_client: bool = False,
) -> Server[Any]:
    """Return a Server that offers the tools and prompts of the profile, and the resources.

    Without a service it answers lists only. `on_call` hears of each tool call when it has ended. With `one_client`, who
    stays connected, resources/subscribe is served too; what other clients of the handshake era subscribed to, nobody
    could be told.
    """
    shown = shown_tools(tools)
    definitions = [
        wire.Tool.model_validate(shown_definition(name, tool, tools), by_name=False) for name, tool in shown.items()
    ]
    prompts = shown_prompts(tools)
    subscriptions = Subscriptions(service, caller_of)
    lanes: dict[bool, anyio.CapacityLimiter] = {}  # made on first use: they belong to the running event loop

    async def list_tools(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=definitions)

    async def call_tool(ctx: Context, params: wire.CallToolRequestParams) -> wire.CallToolResult:
        tool = shown.get(params.name)
        if tool is None or service is None:
            known = ", ".join(shown)
            raise MCPError(code=wire.INVALID_PARAMS, message=f"Unknown tool: {params.name[:80]}. Known: {known}.")
        with _watched(tool.name, ctx, on_call) as ended:
            call = partial(answer_call, tool, service, caller_of(ctx), params.arguments)
            try:
                return ended(*await in_turn(call, reads=tool.definition["annotations"]["readOnlyHint"]))
            except Queued:
                said = f"{tool.name} waited {QUEUE_S:.0f} s for other calls and was not begun. Call it again later."
                return ended(failure(said), "busy")

    async def list_prompts(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListPromptsResult:
        return wire.ListPromptsResult(prompts=[_prompt(each) for each in prompts.values()])

    async def get_prompt(ctx: Context, params: wire.GetPromptRequestParams) -> wire.GetPromptResult:
        prompt = prompts.get(params.name)
        if prompt is None or service is None:
            known = ", ".join(prompts)
            raise MCPError(code=wire.INVALID_PARAMS, message=f"Unknown prompt: {params.name[:80]}. Known: {known}.")
        text = await read_in_turn(params.name, partial(prompt.text, service, caller_of(ctx), tools, params.arguments))
        said = wire.PromptMessage(role="user", content=wire.TextContent(type="text", text=text))
        return wire.GetPromptResult(description=prompt.description, messages=[said])

    async def list_resources(ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListResourcesResult:
        cursor = params.cursor if params is not None else None
        fixed = [_resource(each) for each in RESOURCES if not each.is_template and not cursor]
        if service is None or not (caller := caller_of(ctx)).may("files:read"):
            return wire.ListResourcesResult(resources=fixed)
        read = partial(service.list_files, caller, limit=resources.PAGE, cursor=cursor)
        page = await read_in_turn("resources/list", read)
        if one_client and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await subscriptions.listed(ctx)
        return wire.ListResourcesResult(resources=[*fixed, *map(_file, page.files)], next_cursor=page.next_cursor)

    async def list_templates(
        ctx: Context, params: wire.PaginatedRequestParams | None
    ) -> wire.ListResourceTemplatesResult:
        return wire.ListResourceTemplatesResult(
            resource_templates=[_template(each) for each in RESOURCES if each.is_template]
        )

    async def read_resource(ctx: Context, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
        if service is None:
            raise MCPError(code=wire.INVALID_PARAMS, message="Resource not found", data={"uri": params.uri})
        read = partial(resources.read, service, caller_of(ctx), params.uri)
        return wire.ReadResourceResult(contents=[_contents(params.uri, await read_in_turn(params.uri, read))])

    async def read_in_turn(name: str, read: Callable[[], T]) -> T:
        """Return what `read` gives. Its failures become those of the protocol: prompts and resources have no others."""
        try:
            return await in_turn(read, reads=True)
        except NotFound as exc:
            raise MCPError(code=wire.INVALID_PARAMS, message=str(exc), data={"uri": name}) from exc
        except (InvalidInput, Refused) as exc:
            raise MCPError(code=wire.INVALID_PARAMS, message=str(exc), data={"uri": name}) from exc
        except Queued as exc:
            waited = f"This waited {QUEUE_S:.0f} s for other calls and was not begun. Ask again later."
            raise MCPError(code=wire.INTERNAL_ERROR, message=waited) from exc
        except PerdureError as exc:
            raise MCPError(code=wire.INTERNAL_ERROR, message=str(exc)) from exc
        except Exception as exc:
            log.error("%s failed with %s\n%s", name[:80], type(exc).__name__, logs.frames(exc))
            said = "This failed inside the server; the reason is in the server's log."
            raise MCPError(code=wire.INTERNAL_ERROR, message=said) from exc

    async def in_turn(call: Callable[[], T], *, reads: bool) -> T:
        """Return what `call` gives in a thread, once it is its turn. Raises Queued."""
        if not lanes:
            lanes.update({each: anyio.CapacityLimiter(CALLS_AT_ONCE) for each in (True, False)})
        lane = lanes[reads]
        try:
            lane.acquire_nowait()  # as nearly always: to wait goes through the event loop twice, even for nothing
        except anyio.WouldBlock:
            with anyio.move_on_after(QUEUE_S) as waiting:
                await lane.acquire()
            if waiting.cancelled_caught:
                raise Queued from None
        try:
            return await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
        finally:
            lane.release()

    return Server(
        "perdure",
        version=__version__,
        title="Perdure",
        instructions=shown_instructions(tools),
        get_tool_input_schema=lambda name: shown[name].definition["inputSchema"] if name in shown else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscriptions_listen=subscriptions.listen,
        on_subscribe_resource=subscriptions.subscribe if one_client else None,
        on_unsubscribe_resource=subscriptions.unsubscribe if one_client else None,
        lifespan=_lifespan,
    )


@asynccontextmanager
async def _lifespan(server: Server[Any]) -> AsyncGenerator[TaskGroup]:
    """Give what runs beside requests its place; it ends with the server."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()


def _prompt(prompt: Prompt) -> wire.Prompt:
    arguments = [
        wire.PromptArgument(name=name, description=what, required=required)
        for name, (what, required) in prompt.arguments.items()
    ]
    return wire.Prompt(name=prompt.name, title=prompt.title, description=prompt.description, arguments=arguments)


def _resource(resource: Resource) -> wire.Resource:
    return wire.Resource(
        uri=resource.uri, name=resource.name, description=resource.description, mime_type=resource.mime_type
    )


def _file(file: FileInfo) -> wire.Resource:
    return wire.Resource(
        uri=resources.address_of(file.path),
        name=file.path,
        size=file.bytes,
        mime_type=mime.type_of(file.path),
    )


def _contents(uri: str, found: resources.Content) -> wire.TextResourceContents | wire.BlobResourceContents:
    if isinstance(found.data, str):
        return wire.TextResourceContents(uri=uri, mime_type=found.mime_type, text=found.data)
    return wire.BlobResourceContents(uri=uri, mime_type=found.mime_type, blob=base64.b64encode(found.data).decode())


def _template(resource: Resource) -> wire.ResourceTemplate:
    return wire.ResourceTemplate(
        uri_template=resource.uri, name=resource.name, description=resource.description, mime_type=resource.mime_type
    )


@contextmanager
def _watched(
    tool: str, ctx: Context, on_call: OnCall | None
) -> Generator[Callable[[wire.CallToolResult, Outcome], wire.CallToolResult]]:
    """Give what to say the end of a call with: it is logged, counted and put into the span of the call."""
    request = ctx.request
    logs.REQUEST.set(request.scope.get(REQUEST_ID) if request is not None else uuid.uuid4().hex)
    begun = time.perf_counter()
    with tracing.span(f"tools/call {tool}", request.headers if request is not None else {}, tool=tool) as span:

        def ended(result: wire.CallToolResult, outcome: Outcome) -> wire.CallToolResult:
            structured: dict[str, Any] = result.structured_content or {}  # Any: JSON
            degraded = bool(structured.get("degraded"))
            call = Call(tool, time.perf_counter() - begun, outcome, degraded)
            if span is not None:
                span.set_attributes({"outcome": outcome, "degraded": degraded})
            ms = round(call.seconds * 1000, 1)
            more = {"tool": tool, "outcome": outcome, "duration_ms": ms, "degraded": degraded}
            log.info("%s %s in %s ms", tool, outcome, ms, extra=more)
            if on_call is not None:
                on_call(call)
            return result

        yield ended


def answer_call(tool: Tool, service: Service, caller: Principal, arguments: Any) -> tuple[wire.CallToolResult, Outcome]:
    """Return the tool's result. Our own failures carry their text; anything else is a bug, logged and not shown."""
    try:
        return _result(service.again(partial(tool.run, service, caller, arguments))), "ok"
    except PerdureError as exc:
        return failure(str(exc)), "unavailable" if isinstance(exc, Unavailable) else "refused"
    except Exception as exc:  # noqa: BLE001 the outermost edge: a bug must cost one call, not the server
        log.error("%s failed with %s\n%s", tool.name, type(exc).__name__, logs.frames(exc))
        said = (
            f"{tool.name} failed inside the server, and whether it took effect is unknown. Call it once more with the "
            "same arguments; if it fails again, the reason is in the server's log."
        )
        return failure(said), "failed"


def failure(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(type="text", text=text)], is_error=True)


def _result(answer: Answer) -> wire.CallToolResult:
    blocks = [wire.TextContent(type="text", text=block) for block in answer.blocks]
    shown = [_binary(answer.binary)] if answer.binary is not None else []
    return wire.CallToolResult(content=[*shown, *blocks], structured_content=answer.structured)


def _binary(found: Binary) -> wire.ImageContent | wire.EmbeddedResource:
    data = base64.b64encode(found.content).decode()
    if found.mime_type.startswith("image/"):
        return wire.ImageContent(type="image", data=data, mime_type=found.mime_type)
    uri = resources.address_of(found.path)
    contents = wire.BlobResourceContents(uri=uri, mime_type=found.mime_type, blob=data)
    return wire.EmbeddedResource(type="resource", resource=contents)
