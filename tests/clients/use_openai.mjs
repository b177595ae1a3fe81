// OpenAI's client for Node: `node use_openai.mjs URL`. Writes what it got as JSON.

import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "any" });
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const asked = { model: "tgi", messages, temperature: 0, max_tokens: 40 };
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

const whole = await client.chat.completions.create(asked);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const called = await client.chat.completions.create({ ...asked, tools, tool_choice: "required" });
const response = await client.responses.create({
  model: "tgi", input: messages[0].content, temperature: 0, max_output_tokens: 40,
});
let refusal = null;
try {
  await client.chat.completions.create({ ...asked, top_p: 2 });
} catch (error) {
  refusal = { isKnown: error instanceof OpenAI.BadRequestError, param: error.param };
}
const call = called.choices[0].message.tool_calls[0].function;
console.log(JSON.stringify({
  whole: whole.choices[0].message.content,
  tokens: whole.usage.completion_tokens,
  streamed,
  response: response.output_text,
  call: [call.name, JSON.parse(call.arguments)],
  refusal,
}));
