// node anthropic.mjs URL TURN...  asks a model of every kind of server for each turn, lets it look with a tool, and prints
// what it saw as one JSON object:
// {"KIND": {"turns": {"WAY": {"TURN": MESSAGE or {"error": …}}}, "loops": {"LOOP": {"text": …} or {"error": …}},
//           "heard": {"text": […], …}, "counted": {"tokens", "notes"}, "parsed": …}, "own": {"searched": {"WAY": MESSAGE}, …}}
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";

const [baseURL, ...turns] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "test", maxRetries: 0 });

const path = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const tools = [{ name: "look", description: "Looks.", input_schema: path }];
const look = () => "a heron";
const question = { role: "user", content: "Look at a." };
const thinking = { type: "enabled", budget_tokens: 1024 };
const asking = (model) => ({ model, max_tokens: 2000, thinking, tools, messages: [question] });

const ways = {
  streamed: (body) => client.messages.stream(body).finalMessage(),
  plain: (body) => client.messages.create(body),
};

const shown = (error) => ({
  error: error.message,
  name: error.constructor.name,
  status: error.status,
  type: error.type,
  wait: error.headers?.get("retry-after"),
});
const orError = (promise) => promise.catch(shown);
const textOf = ({ content }) => content.map(({ text }) => text ?? "").join("");
const results = ({ content }) =>
  content
    .filter(({ type }) => type === "tool_use")
    .map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: look(input) }));

const sendAllAgain = (ask) => async (model) => {
  const body = asking(model);
  const first = await ask(body);
  const said = { role: "assistant", content: first.content };
  const answer = await ask({ ...body, messages: [question, said, { role: "user", content: results(first) }] });
  return { text: textOf(answer) };
};

const letItRun = (settings) => async (model) => {
  const tool = betaTool({ name: "look", description: "Looks.", inputSchema: path, run: look });
  const runner = client.beta.messages.toolRunner({ ...asking(model), tools: [tool], ...settings });
  return { text: textOf(await runner.runUntilDone()) };
};

const loops = {
  "history-streamed": sendAllAgain(ways.streamed),
  "history-plain": sendAllAgain(ways.plain),
  "runner-streamed": letItRun({ stream: true, thread: false }),
  "runner-plain": letItRun({ thread: false }),
  "thread-streamed": letItRun({ stream: true }),
  "thread-plain": letItRun({}),
};

async function listen(model) {
  const heard = { thinking: [], text: [], inputJson: [] };
  const stream = client.messages.stream(asking(model));
  for (const event of Object.keys(heard)) stream.on(event, (delta) => heard[event].push(delta));
  await stream.done();
  return heard;
}

async function count(model) {
  const { max_tokens: _, ...body } = asking(model);
  const { data, response } = await client.messages.countTokens(body).withResponse();
  return { tokens: data.input_tokens, notes: response.headers.get("x-toolwire-notes") };
}

async function parse(model) {
  const format = jsonSchemaOutputFormat({ type: "object", properties: { bird: { type: "string" } } });
  const body = { ...asking(model), output_config: { format } };
  return (await client.messages.parse(body)).parsed_output;
}

async function seeAll(kind) {
  const seen = { turns: {}, loops: {} };
  for (const [way, ask] of Object.entries(ways)) {
    seen.turns[way] = {};
    for (const turn of turns) seen.turns[way][turn] = await orError(ask(asking(`${kind}/sdk-${turn}`)));
  }
  for (const [loop, run] of Object.entries(loops)) seen.loops[loop] = await orError(run(`${kind}/sdk-${kind}-${loop}`));
  seen.heard = await orError(listen(`${kind}/sdk-everything`));
  seen.counted = await orError(count(`${kind}/sdk-count`));
  seen.parsed = await orError(parse(`${kind}/sdk-parse`));
  return seen;
}

async function seeOwn() {
  const search = { type: "web_search_20250305", name: "web_search" };
  const searching = { ...asking("messages/sdk-search"), tools: [search] };
  const stopping = { ...asking("messages/sdk-stop"), stop_sequences: ["heron"] };
  const beta = { ...asking("messages/sdk-beta"), betas: ["context-management-2025-06-27"] };
  return {
    searched: { streamed: await orError(ways.streamed(searching)), plain: await orError(ways.plain(searching)) },
    stopped: { streamed: await orError(ways.streamed(stopping)), plain: await orError(ways.plain(stopping)) },
    beta: await orError(client.beta.messages.create(beta)),
  };
}

const seen = {};
for (const kind of ["responses", "chat", "messages"]) seen[kind] = await seeAll(kind);
seen.own = await seeOwn();
console.log(JSON.stringify(seen));
