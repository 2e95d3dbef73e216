"""The real HTTP application with the fixtures that the official conformance suite asks for, and nobody else gets.

`python tests/conformance_server.py PORT [sessions]` serves on a fresh data directory until it is ended. The product is
stateless; with `sessions` the fixtures that ask the client back, which no tool of the product does, can be tried too.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import mcp_types as wire
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError

from perdure.app import open_service
from perdure.http import build_app, caller_of
from perdure.mcp.server import Context, build_server, failure
from perdure.metrics import Metrics
from perdure.settings import load_settings

Result = wire.CallToolResult | wire.InputRequiredResult
Fixture = Callable[[Context, wire.CallToolRequestParams], Awaitable[Result]]
Json = dict[str, Any]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = base64.b64encode(b"RIFF&\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\2\0\0\0\0\0").decode()
TOOLS: dict[str, Fixture] = {}
SCHEMAS: dict[str, Json] = {}
BUS = InMemorySubscriptionBus()


def fixture(function: Fixture) -> Fixture:
    TOOLS[cast("Any", function).__name__] = function
    return function


def text(value: str) -> wire.TextContent:
    return wire.TextContent(type="text", text=value)


def image() -> wire.ImageContent:
    return wire.ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri: str, body: str, mime_type: str = "text/plain") -> wire.EmbeddedResource:
    contents = wire.TextResourceContents(uri=uri, mime_type=mime_type, text=body)
    return wire.EmbeddedResource(type="resource", resource=contents)


def done(*content: wire.ContentBlock) -> wire.CallToolResult:
    return wire.CallToolResult(content=list(content))


def question(message: str, name: str, kind: str = "string") -> wire.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return wire.ElicitRequest.model_validate({"method": "elicitation/create", "params": params})


def sampling(prompt: str, most: int) -> wire.CreateMessageRequest:
    messages = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    params = {"messages": messages, "maxTokens": most}
    return wire.CreateMessageRequest.model_validate({"method": "sampling/createMessage", "params": params})


def roots() -> wire.ListRootsRequest:
    return wire.ListRootsRequest.model_validate({"method": "roots/list", "params": {}})


def asks(state: str | None = None, **requests: wire.InputRequest) -> wire.InputRequiredResult:
    return wire.InputRequiredResult(input_requests=requests, request_state=state)


def answer_to(params: Any, name: str) -> Any:
    given: Json = params.input_responses or {}
    return given.get(name)


@fixture
async def test_simple_text(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(text("This is a simple text response for testing."))


@fixture
async def test_image_content(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(image())


@fixture
async def test_audio_content(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(wire.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


@fixture
async def test_embedded_resource(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(embedded("test://embedded-resource", "This is an embedded resource content."))


@fixture
async def test_multiple_content_types(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    data = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return done(text("Multiple content types test:"), image(), data)


@fixture
async def test_error_handling(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return failure("This tool intentionally returns an error for testing")


@fixture
async def test_tool_with_logging(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    for step in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        # Deprecated by the newest revision, and asked for by the suite of the one before it.
        await ctx.session.send_log_message("info", step, related_request_id=ctx.request_id)  # pyright: ignore[reportDeprecated]
        await anyio.sleep(0.05)
    return done(text("Tool with logging executed successfully"))


@fixture
async def test_logging_tool(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return await test_tool_with_logging(ctx, params)


@fixture
async def test_tool_with_progress(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    for step in (0, 50, 100):
        await ctx.session.report_progress(step, 100, f"Completed step {step} of 100")
        await anyio.sleep(0.05)
    return done(text("Tool with progress executed successfully"))


@fixture
async def test_sampling(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    prompt = wire.TextContent(type="text", text=str((params.arguments or {}).get("prompt", "")))
    asked = wire.SamplingMessage(role="user", content=prompt)
    # Deprecated by the newest revision, and asked for by the suite of the one before it.
    answer = await ctx.session.create_message([asked], max_tokens=100, related_request_id=ctx.request_id)  # pyright: ignore[reportDeprecated]
    return done(text(f"LLM response: {getattr(answer.content, 'text', '')}"))


async def elicited(ctx: Context, message: str, properties: Json, required: list[str]) -> wire.CallToolResult:
    schema: Json = {"type": "object", "properties": properties, "required": required}
    answer = await ctx.session.elicit_form(message, schema, ctx.request_id)
    return done(text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"))


@fixture
async def test_elicitation(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    message = str((params.arguments or {}).get("message", ""))
    properties = {"username": {"type": "string"}, "email": {"type": "string"}}
    return await elicited(ctx, message, properties, ["username", "email"])


@fixture
async def test_elicitation_sep1034_defaults(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    properties: Json = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await elicited(ctx, "Please review and update the form fields with defaults", properties, [])


@fixture
async def test_elicitation_sep1330_enums(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{name} Option"} for n, name in enumerate(["First", "Second", "Third"], 1)
    ]
    choices = [
        {"const": f"value{n}", "title": f"{name} Choice"} for n, name in enumerate(["First", "Second", "Third"], 1)
    ]
    properties: Json = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": choices}},
    }
    return await elicited(ctx, "Please select options from the enum fields", properties, [])


@fixture
async def test_streaming_elicitation(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return asks(user_name=question("What is your name?", "name"))


@fixture
async def json_schema_2020_12_tool(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(text("JSON Schema 2020-12"))


@fixture
async def test_x_mcp_header(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return done(text(json.dumps(params.arguments or {})))


@fixture
async def test_missing_capability(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data: Json = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs the capability sampling", data)
    return done(text("The client can sample"))


@fixture
async def test_input_required_result_elicitation(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    answer = answer_to(params, "user_name")
    if not isinstance(answer, wire.ElicitResult) or "name" not in (answer.content or {}):
        return asks(user_name=question("What is your name?", "name"))
    return done(text(f"Hello, {(answer.content or {})['name']}!"))


@fixture
async def test_input_required_result_sampling(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    answer = answer_to(params, "capital_question")
    if not isinstance(answer, wire.CreateMessageResult):
        return asks(capital_question=sampling("What is the capital of France?", 100))
    return done(text(getattr(answer.content, "text", "no text")))


@fixture
async def test_input_required_result_list_roots(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    answer = answer_to(params, "client_roots")
    if not isinstance(answer, wire.ListRootsResult):
        return asks(client_roots=roots())
    return done(text(", ".join(str(root.uri) for root in answer.roots)))


@fixture
async def test_input_required_result_request_state(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    if answer_to(params, "confirm") is None or params.request_state != "asked":
        return asks("asked", confirm=question("Please confirm", "ok", "boolean"))
    return done(text("state-ok"))


@fixture
async def test_input_required_result_tampered_state(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    return await test_input_required_result_request_state(ctx, params)


@fixture
async def test_input_required_result_multiple_inputs(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    names = ("user_name", "greeting", "client_roots")
    if any(answer_to(params, name) is None for name in names):
        name = question("What is your name?", "name")
        return asks("asked", user_name=name, greeting=sampling("Generate a greeting", 50), client_roots=roots())
    return done(text("All three were answered"))


@fixture
async def test_input_required_result_multi_round(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    if params.request_state == "round 2" and answer_to(params, "step2") is not None:
        return done(text("Both steps were answered"))
    if params.request_state == "round 1" and answer_to(params, "step1") is not None:
        return asks("round 2", step2=question("Step 2: What is your favorite color?", "color"))
    return asks("round 1", step1=question("Step 1: What is your name?", "name"))


@fixture
async def test_input_required_result_capabilities(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    capabilities = ctx.session.client_capabilities or wire.ClientCapabilities()
    requests: dict[str, wire.InputRequest] = {}
    if capabilities.sampling is not None:
        requests["greeting"] = sampling("Generate a greeting", 50)
    if capabilities.elicitation is not None:
        requests["user_name"] = question("What is your name?", "name")
    answered = any(answer_to(params, name) is not None for name in requests)
    if requests and not answered:
        return wire.InputRequiredResult(input_requests=requests)
    return done(text("Nothing to ask"))


@fixture
async def test_trigger_tool_change(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    await BUS.publish(ToolsListChanged())
    return done(text("Said that the tools changed"))


@fixture
async def test_trigger_prompt_change(ctx: Context, params: wire.CallToolRequestParams) -> Result:
    await BUS.publish(PromptsListChanged())
    return done(text("Said that the prompts changed"))


EMPTY: Json = {"type": "object", "additionalProperties": False}
SCHEMAS["test_x_mcp_header"] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}
ADDRESS: Json = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMAS["json_schema_2020_12_tool"] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

RESOURCES: dict[str, wire.TextResourceContents | wire.BlobResourceContents] = {
    "test://static-text": wire.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": wire.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
    "test://watched-resource": wire.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="Watched resource content"
    ),
}
PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def read_resource(ctx: Context, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
    uri = str(params.uri)
    if uri in RESOURCES:
        return wire.ReadResourceResult(contents=[RESOURCES[uri]])
    if uri.startswith("test://template/") and uri.endswith("/data"):
        id = uri.removeprefix("test://template/").removesuffix("/data")
        body = json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})
        return wire.ReadResourceResult(
            contents=[wire.TextResourceContents(uri=uri, mime_type="application/json", text=body)]
        )
    raise MCPError(wire.INVALID_PARAMS, "Resource not found", {"uri": uri})


async def get_prompt(
    ctx: Context, params: wire.GetPromptRequestParams
) -> wire.GetPromptResult | wire.InputRequiredResult:
    given = params.arguments or {}
    messages: list[wire.ContentBlock]
    match params.name:
        case "test_simple_prompt":
            messages = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            messages = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            uri = given["resourceUri"]
            about = text("Please process the embedded resource above.")
            messages = [embedded(uri, "Embedded resource content for testing."), about]
        case "test_prompt_with_image":
            messages = [image(), text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            if answer_to(params, "user_context") is None:
                return asks(user_context=question("What context should the prompt use?", "context"))
            messages = [text("The context was given.")]
        case _:
            raise MCPError(wire.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    return wire.GetPromptResult(messages=[wire.PromptMessage(role="user", content=each) for each in messages])


async def list_resources(ctx: Context, params: Any) -> wire.ListResourcesResult:
    return wire.ListResourcesResult(resources=[wire.Resource(uri=uri, name=uri[7:]) for uri in RESOURCES])


async def list_templates(ctx: Context, params: Any) -> wire.ListResourceTemplatesResult:
    template = wire.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
    return wire.ListResourceTemplatesResult(resource_templates=[template])


async def list_prompts(ctx: Context, params: Any) -> wire.ListPromptsResult:
    prompts = [
        wire.Prompt(
            name=name,
            description="For the conformance suite",
            arguments=[wire.PromptArgument(name=each, required=True) for each in arguments],
        )
        for name, arguments in PROMPTS.items()
    ]
    return wire.ListPromptsResult(prompts=prompts)


async def complete(ctx: Context, params: Any) -> wire.CompleteResult:
    return wire.CompleteResult(completion=wire.Completion(values=[], total=0, has_more=False))


async def nothing(ctx: Context, params: Any) -> wire.EmptyResult:
    return wire.EmptyResult()


def add_fixtures(server: Server[Any]) -> None:
    """Register the fixtures beside the product's own tools."""
    lists, calls = server.get_request_handler("tools/list"), server.get_request_handler("tools/call")
    assert lists and calls
    definitions = [
        wire.Tool(name=name, description="For the conformance suite", input_schema=SCHEMAS.get(name, EMPTY))
        for name in TOOLS
    ]

    async def list_tools(ctx: Context, params: Any) -> wire.ListToolsResult:
        ours = await lists.handler(ctx, params)
        assert isinstance(ours, wire.ListToolsResult)
        return wire.ListToolsResult(tools=[*ours.tools, *definitions])

    async def call_tool(ctx: Context, params: wire.CallToolRequestParams) -> Any:
        found = TOOLS.get(params.name)
        return await (found(ctx, params) if found else calls.handler(ctx, params))

    known = server.get_tool_input_schema

    def schema_of(name: str) -> Mapping[str, Any] | None:
        return SCHEMAS.get(name) or (known(name) if known else None)

    server.get_tool_input_schema = schema_of
    add = server.add_request_handler
    add("tools/list", wire.PaginatedRequestParams, list_tools)
    add("tools/call", wire.CallToolRequestParams, call_tool)
    add("resources/list", wire.PaginatedRequestParams, list_resources)
    add("resources/templates/list", wire.PaginatedRequestParams, list_templates)
    add("resources/read", wire.ReadResourceRequestParams, read_resource)
    add("resources/subscribe", wire.SubscribeRequestParams, nothing)
    add("resources/unsubscribe", wire.UnsubscribeRequestParams, nothing)
    add("prompts/list", wire.PaginatedRequestParams, list_prompts)
    add("prompts/get", wire.GetPromptRequestParams, get_prompt)
    add("completion/complete", wire.CompleteRequestParams, complete)
    add("logging/setLevel", wire.SetLevelRequestParams, nothing)
    add("subscriptions/listen", wire.SubscriptionsListenRequestParams, ListenHandler(BUS))
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=server.name))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"PERDURE_EMBEDDER__KIND": "hashing", "PERDURE_INDEX__KIND": "none"}
        settings = load_settings(data_dir=str(Path(folder) / "data"))
        with open_service(settings) as service:
            server = build_server(service, settings.tools, caller_of)
            add_fixtures(server)
            stateless = "sessions" not in sys.argv
            app = build_app(
                server, settings, service, Metrics(service.figures), stateless=stateless, in_one_piece=False
            )
            uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
