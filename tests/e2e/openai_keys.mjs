// OpenAI's client for node with keys: "node openai_keys.mjs MODULE URL KEY" prints what it got as JSON.

const [module, url, key] = process.argv.slice(2);
const { default: OpenAI } = await import(module);
const hello = { model: "speaker", messages: [{ role: "user", content: "hello" }] };

async function said(apiKey) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
  try {
    const whole = (await client.chat.completions.create(hello)).choices[0].message.content;
    const pieces = [];
    for await (const chunk of await client.chat.completions.create({ ...hello, stream: true })) {
      pieces.push(chunk.choices[0]?.delta.content ?? "");
    }
    return [whole, pieces.join("")];
  } catch (error) {
    return [error.constructor.name, error.status];
  }
}

console.log(JSON.stringify([await said(key), await said("msk_wrong")]));
