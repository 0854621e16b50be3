// OpenAI's client for node against a server of text_models.py: prints what it got as JSON.
// node openai_client.mjs MODULE URL TEXT TEXT…

const [module, url, ...texts] = process.argv.slice(2);
const { default: OpenAI } = await import(module);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>';
const parameters = { type: "object" };
const hello = { model: "speaker", messages: [{ role: "user", content: "hello big world" }] };

async function streamed() {
  const pieces = [];
  let tokens = null;
  for await (const chunk of await client.chat.completions.create({
    ...hello,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    pieces.push(chunk.choices[0]?.delta.content ?? "");
    tokens = chunk.usage?.total_tokens ?? tokens;
  }
  return [pieces.filter(Boolean), tokens];
}

async function abandoned() {
  const stream = await client.chat.completions.create({ ...hello, model: "endless", stream: true });
  let count = 0;
  for await (const chunk of stream) {
    count += chunk.choices.length;
    if (count === 4) break; // which aborts the request
  }
  return count;
}

async function events() {
  const stream = client.responses.stream({ model: "speaker", input: "hello big world" });
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  return [[...kinds], (await stream.finalResponse()).output_text];
}

async function refused(work) {
  try {
    await work();
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return [];
}

const whole = await client.chat.completions.create(hello);
const called = await client.chat.completions.create({
  model: "speaker",
  messages: [{ role: "user", content: `SAY:Well ${call}` }],
  tools: [{ type: "function", function: { name: "weather", parameters } }],
});
const response = await client.responses.create({ model: "speaker", instructions: "brief", input: "hello" });
const embeddings = await client.embeddings.create({ model: "minilm", input: texts });

console.log(
  JSON.stringify({
    whole: [whole.choices[0].message.content, whole.usage.total_tokens],
    stream: await streamed(),
    abandoned: await abandoned(),
    tool: called.choices[0].message.tool_calls.map((each) => [each.function.name, each.function.arguments]),
    response: [response.output_text, response.usage.total_tokens],
    events: await events(),
    embeddings: embeddings.data.map((each) => each.embedding),
    models: (await client.models.list()).data.map((each) => each.id).sort(),
    unknown: await refused(() => client.chat.completions.create({ ...hello, model: "nosuch" })),
  }),
);
